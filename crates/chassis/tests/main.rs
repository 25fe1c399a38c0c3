//! A chassis against a real southbound database.

mod options;
mod program;
mod services;
mod taught;
