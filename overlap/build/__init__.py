"""What a generated module compiles to, without a GPU: artifacts, facts and findings."""
