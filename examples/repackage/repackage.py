"""A record of a country to one of another form."""

import json


def repackage(country):
    if country["capital"] is None:
        return None
    density = country["population"] / country["area_km2"] if country["area_km2"] else None
    document = {
        "place": {"name": country["name"], "capital": country["capital"]},
        "people": {"count": country["population"], "per_km2": density and round(density, 1)},
        "money": country["currency"],
    }
    languages = country["languages"] or []
    return {
        "key": country["iso"].lower(),
        "title": "%s (%s)" % (country["name"], country["capital"]),
        "languages": len(languages),
        "document": json.dumps(document, ensure_ascii=False),
    }
