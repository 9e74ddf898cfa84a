"""What a write did: by arithmetic (`audit`), by bytes in an `arena` of canaries, or in a `live` cache.

`report` puts it into words and `textmap` draws it as text; `child` runs what may crash in another process.
"""
