//! Tests a chassis with a real southbound database.

mod options;
mod program;
mod services;
mod taught;
