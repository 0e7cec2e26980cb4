"""The follower's side: fetchers, where a log is cut, who leads."""
