//! Tests of the real binary, in one program: each further one would link the whole engine again.

mod bad_data;
mod bad_endings;
mod bad_jobs;
mod bad_places;
mod bad_sql;
mod bad_targets;
mod transcript;
mod use_archives;
mod use_buckets;
mod use_commands;
mod use_database_sources;
mod use_databases;
mod use_demo;
mod use_formats;
mod use_large;
mod use_memory;
mod use_report;
mod use_scratch;
mod use_shared;
mod use_sinks;
mod use_sorts;
mod use_sources;
mod use_support;
mod use_transforms;
mod verdict;
mod workspace;
