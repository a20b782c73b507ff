"""From a log on disk to trees on disk, part by part."""
