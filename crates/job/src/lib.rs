//! Millstream's job file: from YAML to a linted, typed graph
