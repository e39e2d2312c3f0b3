"""The mapper: names of places to words."""


def words(places):
    for place in places:
        for word in place["name"].lower().split():
            yield {"word": word, "country": place["country"]}
