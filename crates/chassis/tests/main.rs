//! A chassis against a real southbound database.

mod program;
