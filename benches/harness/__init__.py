"""The harness behind `benches/run`: makes data, runs Millstream, its peers and the limit, reports."""
