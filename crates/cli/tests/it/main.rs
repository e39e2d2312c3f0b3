//! Tests of the real binary, in one program: each further one would link the whole engine again.

mod workspace;
