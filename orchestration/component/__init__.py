"""Contains what a user's own code location needs: `SluiceComponent` for `dg`, `build_definitions` for use without `dg`, and the code that
starts the engines and Spark.
"""
