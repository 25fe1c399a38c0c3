//! [`Timeouts`]: the time that a connection lives after its last packet.

macro_rules! timeouts {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal $seconds:literal,)+) => {
        /// A state that has a timeout of its own.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Timeout {
            $(
                $(#[doc = $doc])+
                #[doc = concat!(" Default: ", $seconds, " s, as `", $name, "`.")]
                $variant,
            )+
        }

        impl Timeout {
            /// Every timeout.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            const COUNT: usize = Self::ALL.len();

            /// The name in configurations.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The default in seconds.
            pub const fn default_s(self) -> u32 {
                match self { $(Self::$variant => $seconds,)+ }
            }
        }
    };
}

// The defaults are those of Linux (Documentation/networking/nf_conntrack-sysctl.rst).
timeouts! {
    /// TCP: a SYN in one direction.
    TcpSynSent "tcp_syn_sent" 120,
    /// TCP: SYN and SYN-ACK.
    TcpSynRecv "tcp_syn_recv" 60,
    /// TCP: established.
    TcpEstablished "tcp_established" 432_000,
    /// TCP: one end has sent FIN.
    TcpFinWait "tcp_fin_wait" 120,
    /// TCP: the other end has acknowledged the FIN.
    TcpCloseWait "tcp_close_wait" 60,
    /// TCP: both ends have sent FIN.
    TcpLastAck "tcp_last_ack" 30,
    /// TCP: closed by both ends.
    TcpTimeWait "tcp_time_wait" 120,
    /// TCP: reset.
    TcpClose "tcp_close" 10,
    /// TCP: a SYN in both directions.
    TcpSynSent2 "tcp_syn_sent2" 120,
    /// TCP: the same segment was sent several times, or the window is closed.
    TcpRetransmit "tcp_retransmit" 300,
    /// TCP: data is not acknowledged, or a picked-up connection has no reply.
    TcpUnacknowledged "tcp_unacknowledged" 300,
    /// UDP: no reply, or a reply within the first two seconds.
    Udp "udp" 30,
    /// UDP: packets in both directions for more than two seconds.
    UdpStream "udp_stream" 120,
    /// ICMP and ICMPv6.
    Icmp "icmp" 30,
    /// SCTP: closed, or nothing but an INIT.
    SctpClosed "sctp_closed" 10,
    /// SCTP: INIT-ACK sent.
    SctpCookieWait "sctp_cookie_wait" 3,
    /// SCTP: COOKIE-ECHO sent.
    SctpCookieEchoed "sctp_cookie_echoed" 3,
    /// SCTP: established.
    SctpEstablished "sctp_established" 210,
    /// SCTP: the first end has sent SHUTDOWN.
    SctpShutdownSent "sctp_shutdown_sent" 3,
    /// SCTP: the other end has sent SHUTDOWN.
    SctpShutdownReceived "sctp_shutdown_received" 3,
    /// SCTP: SHUTDOWN-ACK sent.
    SctpShutdownAckSent "sctp_shutdown_ack_sent" 3,
    /// SCTP: HEARTBEAT sent on a path that has no other packet.
    SctpHeartbeatSent "sctp_heartbeat_sent" 30,
    /// Any other protocol.
    Generic "generic" 600,
}

/// The timeout of each state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeouts([u32; Timeout::COUNT]);

impl Default for Timeouts {
    fn default() -> Self {
        let mut seconds = [0; Timeout::COUNT];
        Timeout::ALL.iter().for_each(|&t| seconds[t as usize] = t.default_s());
        Self(seconds)
    }
}

impl Timeouts {
    /// A timeout in seconds.
    pub const fn seconds(&self, timeout: Timeout) -> u32 {
        self.0[timeout as usize]
    }

    /// Sets a timeout. A connection receives it with its next packet.
    pub const fn set(&mut self, timeout: Timeout, seconds: u32) {
        self.0[timeout as usize] = seconds;
    }

    #[inline]
    pub(crate) const fn ms(&self, timeout: Timeout) -> u64 {
        self.seconds(timeout) as u64 * 1000
    }

    /// The shorter of two timeouts.
    pub(crate) const fn shorter(&self, a: Timeout, b: Timeout) -> Timeout {
        if self.seconds(b) < self.seconds(a) { b } else { a }
    }
}
