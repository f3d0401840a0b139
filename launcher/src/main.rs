//! The `ucxrun` binary.

fn main() {}
