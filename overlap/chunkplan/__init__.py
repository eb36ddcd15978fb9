"""What moves: region algebra, plan nouns, the plan language, templates and the plan verifier."""
