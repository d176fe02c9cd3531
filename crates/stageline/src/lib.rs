//! stageline
