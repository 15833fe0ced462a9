"""Records on disk: readers, writers and the journal that makes a run resumable."""
