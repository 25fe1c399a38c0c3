//! The bodies of the fuzz targets as plain functions, and the seeds of the targets.
//!
//! A body panics if it detects a fault, and accepts all other inputs. The tests of the seeds check
//! its return value.
#![forbid(unsafe_code)]

pub mod actions;
pub mod coalescing;
pub mod connections;
pub mod control;
pub mod database;
pub mod encapsulation;
pub mod execution;
pub mod expressions;
pub mod frames;
pub mod headers;
pub mod keys;
pub mod lists;
pub mod megaflows;
pub mod network;
pub mod ofctl;
pub mod offload;
pub mod openflow;
pub mod ovn;
pub mod path;
pub mod pins;
pub mod probes;
pub mod programs;
pub mod reassembly;
pub mod seeds;
pub mod services;
pub mod switch;
pub mod targets;
pub mod tunnels;
