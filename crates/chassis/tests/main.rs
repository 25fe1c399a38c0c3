//! Tests a chassis with a real southbound database.

mod learned_writer;
mod options;
mod program;
mod services;
