//! [`Limits`]: the bounds on the memory that a server can make a client use.

/// Bounds on input and output. A server that exceeds one is disconnected; the reason names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of one message without the rows of table updates, or of one such row.
    pub message_bytes: usize,
    /// Bytes of all rows of one table update, as JSON.
    pub update_bytes: u64,
    /// Nesting of arrays and objects in a message: 1 to [`Limits::MAX_DEPTH`].
    pub depth: u32,
    /// Rows of the replica, and separately rows of one table update.
    pub rows: usize,
    /// Requests without a reply.
    pub requests: usize,
    /// Bytes of messages that wait for transmission.
    pub unsent_bytes: usize,
}

impl Limits {
    /// The greatest possible nesting.
    pub const MAX_DEPTH: u32 = 100;
}

impl Default for Limits {
    /// 64 MiB a message or row, 8 GiB an update, nesting of 32, 10 million rows, 1,024 requests,
    /// 64 MiB unsent.
    fn default() -> Self {
        Self {
            message_bytes: 64 << 20,
            update_bytes: 8 << 30,
            depth: 32,
            rows: 10_000_000,
            requests: 1024,
            unsent_bytes: 64 << 20,
        }
    }
}
