//! Integration tests of the doctor, linked as one binary.

mod checks;
mod faults;
mod firewall;
mod machine;
mod recorded;
mod veth;
