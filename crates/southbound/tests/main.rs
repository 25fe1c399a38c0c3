//! Southbound databases, compiled into programs and compared with OVN's own tools.

mod ovn_trace;
