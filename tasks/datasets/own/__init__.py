"""Data of one's own: tables, folders and archives of pictures or videos with texts."""
