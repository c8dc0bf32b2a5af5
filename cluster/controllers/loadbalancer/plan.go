package loadbalancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/loadbalancer"
)

// outcome is what one Service gets, and what it does not get.
type outcome struct {
	addresses []netip.Addr
	// ports are those it may use at the addresses; none means all, as no one shares the
	// addresses.
	ports    []corev1.PortStatus
	problems []problem
}

// problem becomes an Event.
type problem struct{ reason, message string }

func (o *outcome) lacks(reason, format string, args ...any) {
	o.problems = append(o.problems, problem{reason, fmt.Sprintf(format, args...)})
}

// request is a Service, what it asks for and what it has.
type request struct {
	*corev1.Service
	has     []netip.Addr // by the status
	wants   netip.Addr   // spec.loadBalancerIP, if it names one
	outcome *outcome
}

func (r *request) name() string { return r.Namespace + "/" + r.Name }

// families are those that the Service has addresses of, true for IPv6, the first one first.
func (r *request) families() []bool {
	var all []bool
	for _, family := range r.Spec.IPFamilies {
		all = append(all, family == corev1.IPv6Protocol)
	}
	return all
}

// all says that the Service is to have addresses of all its families or none.
func (r *request) all() bool {
	return r.Spec.IPFamilyPolicy != nil && *r.Spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack
}

// requests are those of Services that are ours, the oldest first. One that is being deleted keeps
// what it has.
func requests(services []*corev1.Service) []*request {
	var all []*request
	for _, service := range services {
		if !loadbalancer.Concerns(service) {
			continue
		}
		r := &request{Service: service, has: loadbalancer.Addresses(service), outcome: &outcome{}}
		if text := service.Spec.LoadBalancerIP; text != "" {
			a, err := netip.ParseAddr(text)
			if err != nil {
				r.outcome.lacks(reasonInvalid, "spec.loadBalancerIP %q is no IP address", text)
				a = netip.Addr{}
			} else if !slices.Contains(r.families(), a.Is6()) {
				r.outcome.lacks(reasonInvalid, "spec.loadBalancerIP %s is of none of the Service's spec.ipFamilies", a)
			}
			r.wants = a
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *request) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return all
}

// The reasons of Events.
const (
	reasonInvalid   = "InvalidAddress"
	reasonOutside   = "AddressOutsidePool"
	reasonTaken     = "AddressTaken"
	reasonExhausted = "PoolExhausted"
	reasonNoFamily  = "NoAddressOfFamily"
	reasonPort      = "PortConflict"
	reasonNoNode    = "NoNodeAddress"
	reasonAssigned  = "AddressAssigned"
	reasonOther     = "OtherController"
)

// fromPool gives each Service addresses of the pool. A Service keeps what it has if it may: of two
// with the same address, the older one does. What load balancers of others have is not given away.
func fromPool(pool loadbalancer.Pool, all []*request, others []*corev1.Service) {
	taken := map[netip.Addr]string{}
	for _, service := range others {
		for _, a := range loadbalancer.Addresses(service) {
			taken[a] = service.Namespace + "/" + service.Name
		}
	}
	for _, r := range all {
		r.keep(pool, taken)
	}
	free := map[bool]*cursor{false: {pool: pool, taken: taken}, true: {pool: pool, taken: taken, ipv6: true}}
	for _, r := range all {
		if r.DeletionTimestamp == nil && len(r.outcome.problems) == 0 {
			r.complete(pool, free, taken)
		}
	}
}

// keep gives a Service what it has and may keep, one address of each family.
func (r *request) keep(pool loadbalancer.Pool, taken map[netip.Addr]string) {
	for _, ipv6 := range r.families() {
		for _, a := range r.has {
			if a.Is6() == ipv6 && pool.Contains(a) && taken[a] == "" && (!r.wants.IsValid() || r.wants.Is6() != ipv6 || r.wants == a) {
				taken[a] = r.name()
				r.outcome.addresses = append(r.outcome.addresses, a)
				break
			}
		}
	}
}

// complete gives a Service an address of each family of which it keeps none. free are the pool's
// addresses, by whether they are of IPv6.
func (r *request) complete(pool loadbalancer.Pool, free map[bool]*cursor, taken map[netip.Addr]string) {
	kept := r.outcome.addresses
	missing := false
	var addresses []netip.Addr // in the order of the families
	for _, ipv6 := range r.families() {
		i := slices.IndexFunc(kept, func(a netip.Addr) bool { return a.Is6() == ipv6 })
		if i >= 0 {
			addresses = append(addresses, kept[i])
			continue
		}
		a := r.choose(pool, free[ipv6], taken)
		if !a.IsValid() {
			missing = true
			continue
		}
		taken[a] = r.name()
		addresses = append(addresses, a)
	}
	if r.all() && missing && len(kept) == 0 { // none is better than half
		for _, a := range addresses {
			delete(taken, a)
			free[a.Is6()].back = true
		}
		addresses = nil
	}
	r.outcome.addresses = addresses
}

// choose returns the address that a Service gets of a family, or says why there is none.
func (r *request) choose(pool loadbalancer.Pool, free *cursor, taken map[netip.Addr]string) netip.Addr {
	family := corev1.IPv4Protocol
	if free.ipv6 {
		family = corev1.IPv6Protocol
	}
	if r.wants.IsValid() && r.wants.Is6() == free.ipv6 {
		switch owner := taken[r.wants]; {
		case !pool.Contains(r.wants):
			r.outcome.lacks(reasonOutside, "spec.loadBalancerIP %s is not in the pool (%s)", r.wants, pool)
			return netip.Addr{}
		case owner != "":
			r.outcome.lacks(reasonTaken, "spec.loadBalancerIP %s belongs to Service %s", r.wants, owner)
			return netip.Addr{}
		}
		return r.wants
	}
	if !pool.Has(free.ipv6) {
		// A Service that prefers two families is content with one.
		if r.all() || len(r.families()) == 1 {
			r.outcome.lacks(reasonNoFamily, "the pool (%s) has no %s addresses: add some with --load-balancer-cidr", pool, family)
		}
		return netip.Addr{}
	}
	a := free.next()
	if !a.IsValid() {
		r.outcome.lacks(reasonExhausted,
			"all %s addresses of the pool (%s) belong to Services: enlarge it with --load-balancer-cidr, or delete a Service", family, pool)
	}
	return a
}

// cursor walks over a pool's addresses of a family: what it has passed is taken.
type cursor struct {
	pool  loadbalancer.Pool
	ipv6  bool
	taken map[netip.Addr]string
	last  netip.Addr
	done  bool
	back  bool // an address that was passed is free again
}

// next returns an address that is free, the zero Addr if there is none.
func (c *cursor) next() netip.Addr {
	if c.back {
		c.last, c.done, c.back = netip.Addr{}, false, false
	}
	for !c.done {
		a := c.pool.Next(c.ipv6, c.last)
		if c.done = !a.IsValid(); c.done {
			break
		}
		if c.last = a; c.taken[a] == "" {
			return a
		}
	}
	return netip.Addr{}
}
