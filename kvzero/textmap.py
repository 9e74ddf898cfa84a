def draw(audit, *, columns, max_rows):
    return audit.sentence()
