// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* From the underlay: at the tc ingress hook of the uplink. */
#include "decap.h"

#define OTHER_LINK_MARK 0x77656674

/* Where UDP is. */
struct datagram {
	__u32 at;		/* 0: nowhere, or in an earlier fragment */
	bool is_whole;		/* no fragment */
	bool is_ip6;
};

static __always_inline struct datagram find_udp(struct __sk_buff *skb)
{
	__u8 header[IP6_LEN], fragment[8];
	struct datagram none = {}, found = { .at = ETH_LEN + IP6_LEN, .is_whole = true, .is_ip6 = true };

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
 * Has the host's stack give a datagram, whose port stays what it is, to the socket at another: what the
 * host's firewall sees and lets in is the tunnel's port. Kernels before 6.6 cannot where several sockets
 * share one, and none can with fragments, which it takes for nobody's while it joins them.
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
 * A packet that no program serves is the host's. A datagram to the port of VXLAN is the user
 * datapath's, whose sockets are at another port where a device of the kernel's has that one. What
 * is sent there by others is for nobody.
 */
static __noinline int to_host(struct __sk_buff *skb)
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
	if ((udp[3] && bpf_l4_csum_replace(skb, at + 6, udp[1], to, BPF_F_MARK_MANGLED_0 | sizeof(to))) ||
	    bpf_skb_store_bytes(skb, at + 2, &to, sizeof(to), 0))
		return count_drop(weft_config.uplink_port, DROP_HEADROOM);
	return TC_ACT_OK;
}

/*
 * A packet that a program does not deliver goes on untouched: to the user datapath's UDP socket, or
 * handed over where that one would have to listen on a packet socket, which sees what programs serve.
 * When there is no such socket, the host's own stack would tell the sender that there is none: it is
 * counted instead, as what cannot be handed over is.
 */
static __noinline int to_slow_path(struct __sk_buff *skb, const struct arrival *arrival)
{
	if (arrival->proto == PROTO_UDP && has_daemon())
		return to_host(skb);
	return punt(skb, weft_config.uplink_port);
}

/*
 * A tagged frame of no link is the host's. Userspace gets one, too, to count it and show it. There is
 * one of them, so the other comes by here once more, marked.
 */
static __noinline int other_link(struct __sk_buff *skb)
{
	if (!weft_config.has_links)
		return TC_ACT_OK;
	if (skb->mark == OTHER_LINK_MARK) {
		skb->mark = 0;
		return TC_ACT_OK;
	}
	if (!has_token(weft_config.uplink_port))
		return TC_ACT_OK;
	skb->mark = OTHER_LINK_MARK;
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS)) {
		/* The host comes first: it is its frame. */
		skb->mark = 0;
		return TC_ACT_OK;
	}
	skb->mark = 0;
	return punt(skb, weft_config.uplink_port);
}

/* Where a frame of this key has its ECN field. */
#define ECN_FIELD(key) (l3_shape(key) == WEFT_L3_IP6 ? WEFT_SET_IP6_TOS : WEFT_SET_IP4_TOS)

/* A frame out of a tunnel or of a link, and the megaflow that it belongs to. */
struct underlay_frame {
	const struct arrival *by;
	__u32 number;		/* of the megaflow */
	const struct weft_action_list *list;
	const struct weft_action *last;
	__u32 gso_size;		/* of a super-packet, else 0 */
	__u32 bytes;		/* of the frame, with its tags */
};

/* A frame of a tunnel, which has outer headers; that of a link has tags. */
static __always_inline bool is_tunnelled(const struct arrival *arrival)
{
	return arrival->endpoint != WEFT_NO_ENDPOINT;
}

/* Where layer 3 is in the skb. */
static __always_inline __u32 received_l3(const struct weft_key *key, const struct underlay_frame *it)
{
	return it->by->inner.offset + it->by->inner.skip + ETH_LEN + tag_count(key) * TAG_LEN;
}

/* This packet has to go to userspace, and those behind it take the same way. */
static __always_inline int to_slow_path_and_pin(struct __sk_buff *skb, const struct underlay_frame *it)
{
	pin_to_slow_path(it->number);
	return to_slow_path(skb, it->by);
}

/* Takes off what brought the frame. */
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

/* A packet that will be delivered, or that ends here. */
static __always_inline void count_frame(const struct underlay_frame *it)
{
	__u32 number = it->by->endpoint;
	struct weft_endpoint *endpoint;

	count_flow(it->number, it->bytes);
	if (!is_tunnelled(it->by)) {
		count_rx(uplink_stats(), it->bytes + it->by->tags * TAG_LEN);
		return;
	}
	endpoint = bpf_map_lookup_elem(&weft_endpoints, &number);
	if (endpoint) {
		__sync_fetch_and_add(&endpoint->rx_packets, 1);
		__sync_fetch_and_add(&endpoint->rx_bytes, it->bytes);
	}
}

/*
 * A super-packet out of a tunnel can go to a port. The kernel does not forget that there were outer
 * headers: a device that cannot carry the segments of such a packet would cut it as if they were
 * still there, and for UDP it always would. So it goes to pairs, and of UDP to the guest itself.
 */
static __always_inline bool can_deliver_whole(const struct weft_key *key,
					      const struct weft_port *out, __u32 count)
{
	if (ip_proto(key) == PROTO_UDP)
		return count == 1 && is_for_guest(key, out);
	return out->flags & WEFT_PORT_PEER;
}

/* The frame can be taken off what brought it, and all actions but the last can be executed. */
static __always_inline bool can_decap_and_apply(struct __sk_buff *skb, const struct weft_key *key,
				      const struct underlay_frame *it)
{
	__u32 outer = it->by->inner.offset + it->by->inner.skip, wire_len = it->bytes;

	/* Or outer headers cannot be taken off: a whole header of their kind has to stay. */
	if (is_tunnelled(it->by) &&
	    it->bytes < ETH_LEN + (key->port & WEFT_TUNNEL6 ? IP6_LEN : IP4_LEN))
		return false;
	if (it->gso_size) {
		if (is_tunnelled(it->by) && !is_one_packet(skb, key, received_l3(key, it)))
			return false;
		if (it->list->max_len || (weft_config.uplink_max_len && it->list->count > 1)) {
			wire_len = segment_len(skb, key, received_l3(key, it));
			if (!wire_len)
				return false;
			wire_len -= outer;
		}
	}
	if (it->list->max_len && wire_len > it->list->max_len)
		return false;
	return it->list->count == 1 || can_apply_all_but_last(skb, key, it->list, received_l3(key, it), wire_len);
}

/*
 * Takes off what brought the frame, and executes all actions but the last; `ecn`: the frame is to get
 * the ECN field that the key has. An enum decap_result.
 */
static __always_inline int decap_and_apply(struct __sk_buff *skb, struct weft_key *key,
				 struct underlay_frame *it, int ecn, bool *has_protocol)
{
	int taken = decap(skb, key, it->by, has_protocol);

	if (taken == DECAP_REFUSED)
		return taken;
	count_frame(it);
	if (taken != DECAP_OK || (ecn && set_field(skb, key, ECN_FIELD(key), key->ip >> 48, 3)))
		return DECAP_LOST;
	if (it->list->count > 1) {
		if (apply_all_but_last(skb, key, it->list))
			return DECAP_LOST;
		it->bytes = frame_bytes(skb);
	}
	return DECAP_OK;
}

static __always_inline int to_port(struct __sk_buff *skb, struct weft_key *key,
				   struct underlay_frame *it, __u32 tags, int ecn)
{
	struct weft_port *out = port_at(it->last->number);
	bool has_protocol;

	if (!can_output(out, it->gso_size ? 0 : it->bytes - tags) ||
	    (it->gso_size && is_tunnelled(it->by) &&
	     !can_deliver_whole(key, out, it->list->count)))
		return to_slow_path_and_pin(skb, it);
	switch (decap_and_apply(skb, key, it, ecn, &has_protocol)) {
	case DECAP_OK:
		count_tx(port_stats(it->last->number), it->bytes);
		return deliver(skb, key, out, has_protocol);
	case DECAP_REFUSED:
		return to_slow_path_and_pin(skb, it);
	default:
		return count_drop(key->port >> 32, DROP_HEADROOM);
	}
}

static __always_inline int run_drop(struct __sk_buff *skb, struct weft_key *key,
				     struct underlay_frame *it, int ecn)
{
	bool has_protocol;

	if (weft_config.watch_drops && has_daemon())
		return to_slow_path(skb, it->by);
	if (it->list->count == 1) {
		count_frame(it);
		return count_drop(key->port >> 32, it->last->field);
	}
	/* There are copies. */
	switch (decap_and_apply(skb, key, it, ecn, &has_protocol)) {
	case DECAP_OK:
		return count_drop(key->port >> 32, it->last->field);
	case DECAP_REFUSED:
		return to_slow_path_and_pin(skb, it);
	default:
		return count_drop(key->port >> 32, DROP_HEADROOM);
	}
}

static __always_inline int run_actions(struct __sk_buff *skb, struct weft_key *key,
				   struct underlay_frame *it, int ecn)
{
	__u32 tags = key->vlan ? tag_count(key) * TAG_LEN : 0;
	__u32 outer = it->by->inner.offset + it->by->inner.skip;

	it->bytes = skb->len - outer;
	it->gso_size = skb->gso_size;
	if (!it->list->count) {
		count_frame(it);
		return TC_ACT_SHOT;
	}
	it->last = last_of(it->list);
	if (!it->last)
		return to_slow_path(skb, it->by);
	if (!can_decap_and_apply(skb, key, it))
		return to_slow_path_and_pin(skb, it);
	switch (it->last->kind) {
	case WEFT_ACTION_OUTPUT:
		return to_port(skb, key, it, tags, ecn);
	case WEFT_ACTION_DROP:
		return run_drop(skb, key, it, ecn);
	default:
		return to_slow_path(skb, it->by);
	}
}

/* Ethernet, IPv6, UDP, Geneve and OVN's option. */
#define OUTER_LEN 78

/* Some senders leave all but the Ethernet header of a long packet to pages. */
static __always_inline void pull_outer(struct __sk_buff *skb)
{
	if ((void *)(long)skb->data + OUTER_LEN > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, skb->len < OUTER_LEN ? skb->len : OUTER_LEN);
}

/* By a tunnel, or by a link. */
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
	if (found == ARRIVED_OTHER_LINK)
		return other_link(skb);
	if (found == ARRIVED_SLOW_PATH || parse_inner(skb, &key, &arrival.inner) != WEFT_PARSED)
		return to_slow_path(skb, &arrival);
	ecn = join_ecn(&key, arrival.tos);
	if (ecn < 0)
		return to_slow_path(skb, &arrival);
	flow = lookup(&key, TUNNELLED(&key), &number);
	if (!flow)
		return to_slow_path(skb, &arrival);
	at = flow->list;
	list = bpf_map_lookup_elem(&weft_actions, &at);
	if (at == WEFT_ACTIONS_PUNT || !list || is_pinned(flow))
		return to_slow_path(skb, &arrival);
	frame.by = &arrival;
	frame.number = number;
	frame.list = list;
	return run_actions(skb, &key, &frame, ecn);
}

char _license[] SEC("license") __weak = "Dual BSD/GPL";
