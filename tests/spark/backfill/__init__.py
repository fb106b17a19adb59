"""Backfills: their fold, by a model and on files, and their merge on Spark."""
