//! Millstream's engine: from a job to a DataFusion plan to a run and its report
