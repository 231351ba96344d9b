"""Reports of programs and plans: explained, judged, and compared with a compiler."""
