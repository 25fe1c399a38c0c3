//! Traffic between guests, and between real hosts. No other program is needed.

pub mod blast;
pub mod connections;
pub mod flow;
pub mod flow_sink;
pub mod frames;
pub mod load;
pub mod ping;
pub mod sink;
