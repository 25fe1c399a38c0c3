// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Packets from the underlay: the program at tc ingress of the uplink. */
#include "decap.h"

/* skb->mark of the copy of a frame that other_link() has already handled ("weft"). */
#define OTHER_LINK_MARK 0x77656674

/* The place of the UDP header in a packet. */
struct datagram {
	__u32 at;		/* offset in the skb; 0: no UDP header in this packet */
	bool is_whole;		/* not a fragment */
	bool is_ip6;
};

static __always_inline struct datagram find_udp(struct __sk_buff *skb)
{
	__u8 header[IP6_LEN], fragment[8];
	struct datagram none = {}, found = {
		.at = ETH_LEN + IP6_LEN,
		.is_whole = true,
		.is_ip6 = true,
	};

	if (skb->protocol == bpf_htons(ETHERTYPE_IP4)) {
		if (bpf_skb_load_bytes(skb, ETH_LEN, header, IP4_LEN) || header[9] != PROTO_UDP ||
		    be16(header + 6) & IP4_OFFSET)
			return none;
		found.at = ETH_LEN + (header[0] & 0x0f) * 4;
		found.is_whole = !(be16(header + 6) & IP4_MORE);
		found.is_ip6 = false;
		return found;
	}
	if (skb->protocol != bpf_htons(ETHERTYPE_IP6) ||
	    bpf_skb_load_bytes(skb, ETH_LEN, header, IP6_LEN))
		return none;
	if (header[6] == PROTO_UDP)
		return found;
	if (header[6] != PROTO_FRAGMENT ||
	    bpf_skb_load_bytes(skb, found.at, fragment, sizeof(fragment)) ||
	    be16(fragment + 2) & ~7 || fragment[0] != PROTO_UDP)
		return none;
	found.at += sizeof(fragment);
	found.is_whole = false;
	return found;
}

/*
 * Assigns a datagram to the socket at another port. The packet stays unchanged, so the host's
 * firewall still sees the tunnel's port. Kernels before 6.6 cannot assign to SO_REUSEPORT sockets,
 * and no kernel can assign fragments, because reassembly drops the reference.
 */
static __always_inline bool assign(struct __sk_buff *skb, const struct datagram *datagram,
				   __be16 from, __be16 to)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	long failed;

	if (!datagram->is_whole)
		return false;
	if (datagram->is_ip6) {
		if (bpf_skb_load_bytes(skb, ETH_LEN + 8, &tuple.ipv6.saddr, 32))
			return false;
		tuple.ipv6.sport = from;
		tuple.ipv6.dport = to;
		sk = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	} else {
		if (bpf_skb_load_bytes(skb, ETH_LEN + 12, &tuple.ipv4.saddr, 8))
			return false;
		tuple.ipv4.sport = from;
		tuple.ipv4.dport = to;
		sk = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return false;
	failed = bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	return !failed;
}

/*
 * Passes a packet on to the host's network stack. If a kernel device owns VXLAN's port, the user
 * datapath's socket is at another port, and datagrams to VXLAN's port are redirected there.
 * Datagrams that a sender addressed to that other port are dropped. This and the two functions
 * below are global, because the verifier checks a global function only once, not once per call.
 */
__weak int to_host(struct __sk_buff *skb)
{
	__u16 port = weft_config.vxlan_port, socket = weft_config.socket_port;
	__be16 to = bpf_htons(socket), udp[UDP_LEN / 2];
	struct datagram datagram;
	__u32 at;

	if (!socket)
		return TC_ACT_OK;
	datagram = find_udp(skb);
	at = datagram.at;
	if (!at || bpf_skb_load_bytes(skb, at, udp, sizeof(udp)))
		return TC_ACT_OK;
	if (udp[1] == to)
		return count_drop(weft_config.uplink_port, DROP_NO_SUCH_PORT);
	if (udp[1] != bpf_htons(port) || assign(skb, &datagram, udp[0], to))
		return TC_ACT_OK;
	if ((udp[3] && bpf_l4_csum_replace(skb, at + 6, udp[1], to,
					   BPF_F_MARK_MANGLED_0 | sizeof(to))) ||
	    bpf_skb_store_bytes(skb, at + 2, &to, sizeof(to), 0))
		return count_drop(weft_config.uplink_port, DROP_HEADROOM);
	return TC_ACT_OK;
}

/*
 * Passes a packet unchanged to the user datapath. UDP goes to its socket. Other protocols are
 * punted, because a packet socket would also receive packets that this program delivers. Without a
 * daemon there is no socket, and the host would reply "port unreachable"; punt() drops and counts
 * the packet instead. `proto`: of the outer header.
 */
__weak int to_slow_path(struct __sk_buff *skb, __u32 proto)
{
	if (proto == PROTO_UDP && has_daemon())
		return to_host(skb);
	return punt(skb, weft_config.uplink_port);
}

/*
 * Passes a tagged frame of an unknown link to the host. Userspace gets a copy to count and show.
 * The host's copy passes through this program again, with a mark.
 */
__weak int other_link(struct __sk_buff *skb)
{
	if (!weft_config.has_links)
		return TC_ACT_OK;
	if (skb->mark == OTHER_LINK_MARK) {
		skb->mark = 0;
		return TC_ACT_OK;
	}
	if (!has_tokens(weft_config.uplink_port, 1))
		return TC_ACT_OK;
	skb->mark = OTHER_LINK_MARK;
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS)) {
		/* No memory for a copy: the host gets the frame. */
		skb->mark = 0;
		return TC_ACT_OK;
	}
	skb->mark = 0;
	return punt(skb, weft_config.uplink_port);
}

/* The field with ECN in a frame of this key. */
#define ECN_FIELD(key) (l3_shape(key) == WEFT_L3_IP6 ? WEFT_SET_IP6_TOS : WEFT_SET_IP4_TOS)

/* A frame that arrived by a tunnel or link, and its megaflow. */
struct underlay_frame {
	const struct arrival *arrival;
	__u32 number;		/* of the megaflow */
	const struct weft_action_list *list;
	const struct weft_action *last;
	__u32 gso_size;		/* 0: no super-packet */
	__u32 bytes;		/* of the inner frame, including its tags */
};

/* Whether a frame arrived by a tunnel, with outer headers; otherwise by a link, with tags. */
static __always_inline bool is_tunnelled(const struct arrival *arrival)
{
	return arrival->endpoint != WEFT_NO_ENDPOINT;
}

/* Offset of the inner layer 3 in the skb. */
static __always_inline __u32 frame_l3(const struct weft_key *key,
				      const struct underlay_frame *frame)
{
	const struct inner_frame *inner = &frame->arrival->inner;

	return inner->offset + inner->skip + ETH_LEN + tag_count(key) * TAG_LEN;
}

/* As to_slow_path(), and pins the megaflow, so that its later packets stay in order. */
static __always_inline int to_slow_path_and_pin(struct __sk_buff *skb,
						const struct underlay_frame *frame)
{
	pin_to_slow_path(frame->number);
	return to_slow_path(skb, frame->arrival->proto);
}

/* Removes the outer headers or the underlay's tags. */
static __always_inline int decap(struct __sk_buff *skb, struct weft_key *key,
				 const struct arrival *arrival, bool *has_protocol)
{
	if (is_tunnelled(arrival))
		return remove_outer_headers(skb, key, arrival->inner.offset, has_protocol);
	*has_protocol = true;
	if (bpf_skb_vlan_pop(skb) || (arrival->tags == 2 && bpf_skb_vlan_pop(skb)))
		return DECAP_LOST;
	return DECAP_OK;
}

/* Counts a packet that this program delivers or drops. */
static __always_inline void count_frame(const struct underlay_frame *frame)
{
	__u32 number = frame->arrival->endpoint;
	struct weft_endpoint *endpoint;

	count_flow(frame->number, frame->bytes);
	if (!is_tunnelled(frame->arrival)) {
		count_rx(uplink_stats(), frame->bytes + frame->arrival->tags * TAG_LEN);
		return;
	}
	endpoint = bpf_map_lookup_elem(&weft_endpoints, &number);
	if (endpoint) {
		__sync_fetch_and_add(&endpoint->rx_packets, 1);
		__sync_fetch_and_add(&endpoint->rx_bytes, frame->bytes);
	}
}

/*
 * Whether a super-packet from a tunnel can be delivered unsegmented. Its GSO type still says
 * "tunnel" after decapsulation, so a device without tunnel offload would segment it wrongly. A veth
 * pair forwards it unsegmented, except UDP. So UDP can only be injected at the guest's end. The
 * guest's kernel segments it for a socket without UDP_GRO, and drops it if the GSO type says "UDP
 * tunnel".
 */
static __always_inline bool can_deliver_whole(const struct weft_key *key,
					      const struct underlay_frame *frame,
					      const struct weft_port *out)
{
	if (ip_proto(key) == PROTO_UDP)
		return frame->arrival->proto != PROTO_UDP && frame->list->count == 1 &&
		       is_for_guest(key, out);
	return out->flags & WEFT_PORT_PEER;
}

/* Whether decapsulation and all actions but the last will succeed. */
static __always_inline bool can_decap_and_apply(struct __sk_buff *skb, const struct weft_key *key,
				      const struct underlay_frame *frame)
{
	__u32 outer = frame->arrival->inner.offset + frame->arrival->inner.skip;
	__u32 wire_len = frame->bytes;

	/* bpf_skb_adjust_room() demands that a whole IP header remains. */
	if (is_tunnelled(frame->arrival) &&
	    frame->bytes < ETH_LEN + (key->port & WEFT_TUNNEL6 ? IP6_LEN : IP4_LEN))
		return false;
	if (frame->gso_size) {
		if (is_tunnelled(frame->arrival) && !is_one_packet(skb, key, frame_l3(key, frame)))
			return false;
		if (frame->list->max_len ||
		    (weft_config.uplink_max_len && frame->list->count > 1)) {
			wire_len = segment_len(skb, key, frame_l3(key, frame));
			if (!wire_len)
				return false;
			wire_len -= outer;
		}
	}
	if (frame->list->max_len && wire_len > frame->list->max_len)
		return false;
	if (frame->list->count == 1)
		return true;
	switch (can_apply_all_but_last(skb, key, frame->list, frame_l3(key, frame), wire_len)) {
	case CAN_APPLY:
		return true;
	case CAN_APPLY_WITH_SUM:
		return !has_partial_inside(skb, l4_offset(skb, key, frame_l3(key, frame)));
	default:
		return false;
	}
}

/*
 * Decapsulates and executes all actions but the last. `ecn`: write the key's ECN field to the
 * frame. Returns an enum decap_result.
 */
static __always_inline int decap_and_apply(struct __sk_buff *skb, struct weft_key *key,
				 struct underlay_frame *frame, int ecn, bool *has_protocol)
{
	int taken = decap(skb, key, frame->arrival, has_protocol);

	if (taken == DECAP_REFUSED)
		return taken;
	count_frame(frame);
	if (taken != DECAP_OK)
		return DECAP_LOST;
	if (ecn && set_field(skb, key, ECN_FIELD(key), key->ip >> IP_TOS_SHIFT, 3))
		return DECAP_LOST;
	if (frame->list->count > 1) {
		if (apply_all_but_last(skb, key, frame->list))
			return DECAP_LOST;
		frame->bytes = frame_bytes(skb);
	}
	return DECAP_OK;
}

static __always_inline int output_to_port(struct __sk_buff *skb, struct weft_key *key,
				   struct underlay_frame *frame, __u32 tags, int ecn)
{
	struct weft_port *out = port_at(frame->last->number);
	bool has_protocol;

	if (!can_output(out, frame->gso_size ? 0 : frame->bytes - tags) ||
	    (frame->gso_size && is_tunnelled(frame->arrival) &&
	     !can_deliver_whole(key, frame, out)))
		return to_slow_path_and_pin(skb, frame);
	switch (decap_and_apply(skb, key, frame, ecn, &has_protocol)) {
	case DECAP_OK:
		count_tx(port_stats(frame->last->number), frame->bytes);
		return deliver(skb, key, out, has_protocol);
	case DECAP_REFUSED:
		return to_slow_path_and_pin(skb, frame);
	default:
		return count_drop(ingress_port(key), DROP_HEADROOM);
	}
}

static __always_inline int run_drop(struct __sk_buff *skb, struct weft_key *key,
				     struct underlay_frame *frame, int ecn)
{
	bool has_protocol;

	if (weft_config.watch_drops && has_daemon())
		return to_slow_path(skb, frame->arrival->proto);
	if (frame->list->count == 1) {
		count_frame(frame);
		return count_drop(ingress_port(key), frame->last->field);
	}
	/* The list has copies to send before the drop. */
	switch (decap_and_apply(skb, key, frame, ecn, &has_protocol)) {
	case DECAP_OK:
		return count_drop(ingress_port(key), frame->last->field);
	case DECAP_REFUSED:
		return to_slow_path_and_pin(skb, frame);
	default:
		return count_drop(ingress_port(key), DROP_HEADROOM);
	}
}

static __always_inline int run_actions(struct __sk_buff *skb, struct weft_key *key,
				   struct underlay_frame *frame, int ecn)
{
	__u32 tags = key->vlan ? tag_count(key) * TAG_LEN : 0;
	__u32 outer = frame->arrival->inner.offset + frame->arrival->inner.skip;
	__u32 count = frame->list->count;

	frame->bytes = skb->len - outer;
	frame->gso_size = skb->gso_size;
	if (!count) {
		count_frame(frame);
		return TC_ACT_SHOT;
	}
	frame->last = last_of(frame->list, count);
	if (!frame->last)
		return to_slow_path(skb, frame->arrival->proto);
	if (!can_decap_and_apply(skb, key, frame))
		return to_slow_path_and_pin(skb, frame);
	switch (frame->last->kind) {
	case WEFT_ACTION_OUTPUT:
		return output_to_port(skb, key, frame, tags, ecn);
	case WEFT_ACTION_DROP:
		return run_drop(skb, key, frame, ecn);
	default:
		return to_slow_path(skb, frame->arrival->proto);
	}
}

/* Longest outer header: Ethernet, IPv6, UDP, Geneve and OVN's option. */
#define OUTER_LEN 78

/*
 * Pulls the outer headers into the linear part. Some drivers leave only the Ethernet header there.
 */
static __always_inline void pull_outer(struct __sk_buff *skb)
{
	if ((void *)(long)skb->data + OUTER_LEN > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, skb->len < OUTER_LEN ? skb->len : OUTER_LEN);
}

/* Parses the outer headers or tags into the key. Returns an enum arrival_kind. */
static __always_inline int arrive(struct __sk_buff *skb, struct weft_key *key,
				  struct arrival *arrival)
{
	if (skb->vlan_present)
		return read_link(skb, key, arrival);
	if (skb->protocol == bpf_htons(ETHERTYPE_IP4)) {
		pull_outer(skb);
		return read_tunnel(skb, key, arrival, false);
	}
	if (skb->protocol == bpf_htons(ETHERTYPE_IP6)) {
		pull_outer(skb);
		return read_tunnel6(skb, key, arrival);
	}
	return is_tpid(bpf_ntohs(skb->protocol)) ? read_link(skb, key, arrival) : ARRIVED_NOT_OURS;
}

SEC("tc")
int weft_uplink(struct __sk_buff *skb)
{
	struct arrival arrival = {};
	struct underlay_frame frame = {};
	struct weft_key key = {};
	struct weft_action_list *list;
	struct weft_flow *flow;
	__u32 number, at;
	int found, ecn;

	found = arrive(skb, &key, &arrival);
	if (found == ARRIVED_NOT_OURS)
		return to_host(skb);
	if (found == ARRIVED_FROM_UNKNOWN)
		return count_drop(weft_config.uplink_port, DROP_UNKNOWN_ENDPOINT);
	if (found == ARRIVED_OTHER_LINK)
		return other_link(skb);
	if (found == ARRIVED_SLOW_PATH ||
	    parse_guest_frame(skb, &key, &arrival.inner) != WEFT_PARSED)
		return to_slow_path(skb, arrival.proto);
	ecn = join_ecn(&key, arrival.tos);
	if (ecn < 0)
		return to_slow_path(skb, arrival.proto);
	flow = lookup(&key, true, &number);
	if (!flow)
		return to_slow_path(skb, arrival.proto);
	at = flow->list;
	list = bpf_map_lookup_elem(&weft_actions, &at);
	if (at == WEFT_ACTIONS_PUNT || !list || is_pinned(flow))
		return to_slow_path(skb, arrival.proto);
	frame.arrival = &arrival;
	frame.number = number;
	frame.list = list;
	return run_actions(skb, &key, &frame, ecn);
}

char _license[] SEC("license") __weak = "Dual BSD/GPL";
