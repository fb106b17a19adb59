"""`./sluice bench soak`: the pipeline for hours, while in turn its source fails over and ZooKeeper, engine and Spark are killed."""
