"""What the target is asked, so that it writes the text its drafters learn from; nothing here comes from a download.

Sources: the target's own imagination (user turns that it writes), Python's standard library with its documentation,
and edit tasks that code makes over both. All of it is drawn by seed.
"""
