// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* From a guest: at the tc ingress hook of the device that is a port's end on the host. */
#include "actions.h"

/* A frame that a guest has sent, and the megaflow that it belongs to. */
struct guest_frame {
	__u32 port;
	__u32 number;		/* of the megaflow */
	const struct weft_action_list *list;
	const struct weft_action *last;
	__u32 bytes;		/* with its tags */
	__u32 wire_len;		/* of the frame, or where it matters of the longest of its segments */
	__u32 gso_size;		/* of a super-packet, else 0 */
};

/* Where layer 3 begins in the skb, whose outermost tag may be in the metadata. */
static __always_inline __u32 sent_l3(struct __sk_buff *skb, const struct weft_key *key,
				     const struct guest_frame *sent)
{
	return ETH_LEN + tag_count(key) * TAG_LEN - (sent->bytes - skb->len);
}

/* This packet has to go to userspace, and those behind it take the same way. */
static __always_inline int punt_and_pin(struct __sk_buff *skb, const struct guest_frame *sent)
{
	pin_to_slow_path(sent->number);
	return punt(skb, sent->port);
}

/* Counts a packet that ends here. */
static __always_inline void count_frame(const struct guest_frame *sent)
{
	count_rx(port_stats(sent->port), sent->bytes);
	count_flow(sent->number, sent->bytes);
}

/* A packet that could not be changed after it had begun. */
static __always_inline int drop_half_changed(const struct guest_frame *sent)
{
	count_frame(sent);
	return count_drop(sent->port, DROP_HEADROOM);
}

#define OF_CLASS(flags) ((flags) << WEFT_ENDPOINT_CLASS_SHIFT)

/* The end point of a list that ends in encapsulation, if the frame can go there, and its flags. */
static __always_inline struct weft_endpoint *can_encap(struct __sk_buff *skb,
						       const struct weft_key *key,
						       const struct guest_frame *sent, __u32 *flags)
{
	const __u32 ready = WEFT_ENDPOINT_PRESENT | WEFT_ENDPOINT_RESOLVED;
	const struct weft_action_list *list = sent->list;
	struct weft_endpoint *endpoint;
	__u32 number = list->endpoint, limit;

	endpoint = bpf_map_lookup_elem(&weft_endpoints, &number);
	if (!endpoint)
		return 0;
	/* Once: they may change meanwhile. */
	*flags = *(volatile __u32 *)&endpoint->flags;
	if ((*flags & ready) != ready)
		return 0;
	limit = endpoint->max_len;
	if (*flags & WEFT_ENDPOINT_GENEVE && sent->last->has_ports)
		limit -= OPTION_LEN;
	if ((__s32)(sent->wire_len + list->grows) > (__s32)limit)
		return 0;
	/* Two tags can be put into the bytes of the frame. */
	if ((key->vlan || list->grows) &&
	    (has_odd_tags(key) || tag_count(key) * TAG_LEN + list->grows > 2 * TAG_LEN))
		return 0;
	if (sent->gso_size) {
		const __u32 refused = OF_CLASS(WEFT_CLASS_CHECKSUM | WEFT_CLASS_IP6);
		__u32 len = *flags >> WEFT_ENDPOINT_LEN_SHIFT & 0xff;

		/* Lengths of outer headers have 16 bits. */
		if ((*flags & refused) == refused ||
		    skb->len + list->grows + TAG_LEN + len + OPTION_LEN > 0xffff)
			return 0;
		/* Helpers refuse a tunnel in a tunnel, which is too late once the frame is changed. */
		if ((list->count > 1 || key->vlan) && is_encapsulated(skb))
			return 0;
	} else if (skb->len > LONGEST_PLAIN) {
		return 0;
	}
	return endpoint;
}

static __always_inline int to_port(struct __sk_buff *skb, struct weft_key *key,
				   const struct guest_frame *sent, __u32 tags)
{
	struct weft_port *out = port_at(sent->last->number);

	if (!can_output(out, sent->gso_size ? 0 : sent->bytes - tags))
		return punt_and_pin(skb, sent);
	if (sent->list->count > 1 && apply_all_but_last(skb, key, sent->list))
		return drop_half_changed(sent);
	count_frame(sent);
	count_tx(port_stats(sent->last->number), frame_bytes(skb));
	return deliver(skb, key, out, true);
}

static __always_inline int to_endpoint(struct __sk_buff *skb, struct weft_key *key,
				       const struct guest_frame *sent)
{
	__u32 uplink = weft_config.uplink_ifindex, bytes, flags;
	struct weft_endpoint *endpoint;
	bool has_sum;
	__u64 sum = 0;
	int done;

	endpoint = can_encap(skb, key, sent, &flags);
	if (!endpoint || !uplink)
		return punt_and_pin(skb, sent);
	/* Its MSS is lowered there. What follows it waits for an answer. */
	if (flags & OF_CLASS(WEFT_CLASS_CLAMP_MSS) && ip_proto(key) == PROTO_TCP &&
	    key->transport & 0x02 << 16)
		return punt(skb, sent->port);
	has_sum = flags & OF_CLASS(WEFT_CLASS_CHECKSUM) && !sent->gso_size;
	if (has_sum && !sum_of_plain(skb, key, &sum) &&
	    !sum_of_packet(skb, sent_l3(skb, key, sent), is_ip(key), &sum))
		return punt_and_pin(skb, sent);
	bytes = sent->bytes;
	if (sent->list->count > 1) {
		if (apply_all_but_last(skb, key, sent->list))
			return drop_half_changed(sent);
		/* It may be another one now. */
		if (has_sum && !sum_of_packet(skb, l3_offset(skb), is_ip(key), &sum))
			return drop_half_changed(sent);
		bytes = frame_bytes(skb);
	}
	done = flags & OF_CLASS(WEFT_CLASS_IP6) ? encap6(skb, key, sent->last, endpoint, sum) :
					       encap4(skb, key, sent->last, endpoint, sum);
	switch (done) {
	case ENCAP_OK:
		break;
	case ENCAP_REFUSED:
		if (sent->list->count == 1)
			return punt_and_pin(skb, sent);
		/* fall through */
	default:
		return drop_half_changed(sent);
	}
	count_frame(sent);
	__sync_fetch_and_add(&endpoint->tx_packets, 1);
	__sync_fetch_and_add(&endpoint->tx_bytes, bytes);
	return bpf_redirect(uplink, 0);
}

static __always_inline int to_uplink(struct __sk_buff *skb, struct weft_key *key,
				     const struct guest_frame *sent)
{
	__u32 uplink = weft_config.uplink_ifindex;

	if (!can_uplink(sent->wire_len + sent->list->grows))
		return punt_and_pin(skb, sent);
	if (sent->list->count > 1 && apply_all_but_last(skb, key, sent->list))
		return drop_half_changed(sent);
	count_frame(sent);
	count_tx(uplink_stats(), frame_bytes(skb));
	return bpf_redirect(uplink, 0);
}

/* Whether somebody asks how long the segments of a super-packet are. */
static __always_inline bool asks_len(const struct guest_frame *sent)
{
	__u8 kind = sent->last->kind;

	return sent->list->max_len || kind == WEFT_ACTION_ENCAP ||
	       (weft_config.uplink_max_len &&
		(kind == WEFT_ACTION_UPLINK || sent->list->count > 1));
}

static __always_inline int run_actions(struct __sk_buff *skb, struct weft_key *key, struct guest_frame *sent)
{
	__u32 stripped, tags;

	sent->bytes = frame_bytes(skb);
	sent->wire_len = sent->bytes;
	sent->gso_size = skb->gso_size;
	if (!sent->list->count) {
		count_frame(sent);
		return TC_ACT_SHOT;
	}
	sent->last = last_of(sent->list);
	if (!sent->last)
		return punt(skb, sent->port);
	tags = key->vlan ? tag_count(key) * TAG_LEN : 0;
	stripped = sent->bytes - skb->len;
	if (sent->gso_size && asks_len(sent)) {
		sent->wire_len = segment_len(skb, key, ETH_LEN + tags - stripped);
		if (!sent->wire_len)
			return punt_and_pin(skb, sent);
		sent->wire_len += stripped;
	}
	if (sent->list->max_len && sent->wire_len > sent->list->max_len)
		return punt_and_pin(skb, sent);
	if (sent->list->count > 1 &&
	    !can_apply_all_but_last(skb, key, sent->list, ETH_LEN + tags - stripped, sent->wire_len))
		return punt_and_pin(skb, sent);
	switch (sent->last->kind) {
	case WEFT_ACTION_OUTPUT:
		return to_port(skb, key, sent, tags);
	case WEFT_ACTION_ENCAP:
		return to_endpoint(skb, key, sent);
	case WEFT_ACTION_UPLINK:
		return to_uplink(skb, key, sent);
	case WEFT_ACTION_DROP:
		if (weft_config.watch_drops && has_daemon())
			return punt(skb, sent->port);
		if (sent->list->count > 1)
			apply_all_but_last(skb, key, sent->list);
		count_frame(sent);
		return count_drop(sent->port, sent->last->field);
	default:
		return punt(skb, sent->port);
	}
}

static __always_inline struct weft_device *device_at(__u32 place)
{
	place &= WEFT_DEVICES - 1;
	return bpf_map_lookup_elem(&weft_devices, &place);
}

/* One that is not in the first place for its number: another device has that. */
static __noinline struct weft_device *find_device(__u32 ifindex)
{
	struct weft_device *device;
	int i;

#pragma clang loop unroll(disable)
	for (i = 1; i < WEFT_DEVICE_PROBES; i++) {
		device = device_at(ifindex + i);
		if (device && device->ifindex == ifindex)
			return device;
	}
	return 0;
}

/* The port that a device is. */
static __always_inline struct weft_device *device_of(__u32 ifindex)
{
	struct weft_device *device = device_at(ifindex);

	if (device && device->ifindex == ifindex)
		return device;
	return find_device(ifindex);
}

static __noinline bool is_watched_at(__u32 port)
{
	struct weft_port *from = port_at(port);

	return !from || is_watched(from);
}

/*
 * A device of ours that is no port any more, or not yet: what its guest sends is not for the host's
 * own network stack.
 */
static __noinline int no_port(void)
{
	return count_drop(weft_config.uplink_port, DROP_NO_SUCH_PORT);
}

SEC("tc")
int weft_vif(struct __sk_buff *skb)
{
	struct weft_device *device = device_of(skb->ifindex);
	__u32 at, port, number;
	struct guest_frame sent = {};
	struct weft_action_list *list;
	struct weft_flow *flow;
	struct weft_key key;

	if (!device)
		return no_port();
	port = device->port;
	if (weft_config.watch_frames && is_watched_at(port))
		return punt(skb, port);
	if (parse(skb, &key, port, 0) != WEFT_PARSED)
		return miss(skb, port);
	flow = lookup(&key, UNTUNNELLED(&key), &number);
	if (!flow)
		return miss(skb, port);
	at = flow->list;
	list = bpf_map_lookup_elem(&weft_actions, &at);
	if (at == WEFT_ACTIONS_PUNT || !list || is_pinned(flow))
		return punt(skb, port);
	sent.port = port;
	sent.number = number;
	sent.list = list;
	return run_actions(skb, &key, &sent);
}

char _license[] SEC("license") __weak = "Dual BSD/GPL";
