"""The function that Millstream and its peers call on each post: a record of another form."""

import json


def repackage(post):
    """What readers see of a post; nothing of one that is locked."""
    if post["locked"]:
        return None
    words = len(post["body"].split())
    document = {
        "by": {"author": post["author"], "forum": post["forum"]},
        "text": {"title": post["title"], "words": words},
        "rank": round(post["score"] * post["ratio"], 3),
        "at": post["created"],
    }
    return {
        "key": post["id"],
        "title": f"{post['title']} ({post['author']})",
        "words": words,
        "document": json.dumps(document, ensure_ascii=False),
    }
