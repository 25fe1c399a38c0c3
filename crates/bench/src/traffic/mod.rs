//! Traffic between guests, and between real hosts. It needs no external program.

pub mod blast;
pub mod connections;
pub mod flow;
pub mod flow_sink;
pub mod frames;
pub mod load;
pub mod ping;
pub mod sink;
