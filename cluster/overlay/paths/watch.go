package paths

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watch reads the kernel's notifications (rtnetlink(7)) about links, addresses, routes and
// neighbours. What pods cause is left out: each one that starts causes several.
type watch struct {
	cluster int
	log     *slog.Logger
	changed chan struct{}
	altered atomic.Bool // something of the plan, but for rules
	rules   atomic.Bool // these were altered
	stop    chan struct{}
	running sync.WaitGroup

	mu    sync.Mutex
	plan  Plan             // what is expected
	index map[int]Underlay // of our devices
}

// podRoutes is the protocol of coracled's routes, and podGroups what the groups of its pods' links
// have in their first two bits (network/link.go).
const (
	podRoutes            = 85
	groupMask, podGroups = 0xc0000000, 0x40000000
)

// newWatch follows the kernel, and what tells of changes of the rules.
func newWatch(c Config, rules <-chan struct{}) (*watch, error) {
	w := &watch{cluster: c.Cluster, log: c.Log, changed: make(chan struct{}, 1), stop: make(chan struct{}), plan: New(Node{}, nil)}
	err := errors.Join(
		follow(w, func(ch chan<- netlink.LinkUpdate, done <-chan struct{}, failed func(error)) error {
			return netlink.LinkSubscribeWithOptions(ch, done, netlink.LinkSubscribeOptions{ErrorCallback: failed})
		}, w.link),
		follow(w, func(ch chan<- netlink.AddrUpdate, done <-chan struct{}, failed func(error)) error {
			return netlink.AddrSubscribeWithOptions(ch, done, netlink.AddrSubscribeOptions{ErrorCallback: failed})
		}, w.address),
		follow(w, func(ch chan<- netlink.RouteUpdate, done <-chan struct{}, failed func(error)) error {
			return netlink.RouteSubscribeWithOptions(ch, done, netlink.RouteSubscribeOptions{ErrorCallback: failed})
		}, w.route),
		follow(w, func(ch chan<- netlink.NeighUpdate, done <-chan struct{}, failed func(error)) error {
			return netlink.NeighSubscribeWithOptions(ch, done, netlink.NeighSubscribeOptions{ErrorCallback: failed})
		}, w.neighbour),
	)
	if err != nil {
		w.close()
		return nil, fmt.Errorf("follow the machine's network: %w", err)
	}
	w.running.Go(func() {
		for {
			select {
			case <-rules:
				w.rules.Store(true)
				w.tell(false)
			case <-w.stop:
				return
			}
		}
	})
	return w, nil
}

// firstPause and longestPause are between two tries to subscribe again.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = time.Minute
)

// subscription has the kernel's notifications of one kind sent to ch. It closes ch after done was
// closed, and when some were lost, but keeps its socket until done is closed.
type subscription[T any] func(ch chan<- T, done <-chan struct{}, failed func(error)) error

// follow reads one kind of notifications until close. If some were lost, it subscribes again, until
// it succeeds, and everything may have changed.
func follow[T any](w *watch, subscribe subscription[T], read func(T)) error {
	begin := func() (ch chan T, done chan struct{}, err error) {
		ch, done = make(chan T), make(chan struct{})
		err = subscribe(ch, done, func(err error) {
			select {
			case <-w.stop:
			default:
				w.log.Debug("notifications of the kernel were lost", "err", err)
			}
		})
		if err != nil {
			close(done)
		}
		return ch, done, err
	}
	ch, done, err := begin()
	if err != nil {
		return err
	}
	w.running.Go(func() {
		for {
			readAll(w.stop, ch, read)
			close(done)
			for range ch { // until the subscription has ended
			}
			select {
			case <-w.stop:
				return
			default:
			}
			for pause := firstPause; ; pause = min(2*pause, longestPause) {
				if ch, done, err = begin(); err == nil {
					break
				}
				w.log.Warn("changes of the machine's network are not followed: trying again", "in", pause, "err", err)
				select {
				case <-w.stop:
					return
				case <-time.After(pause):
				}
			}
			w.tell(true)
		}
	})
	return nil
}

// readAll reads until the channel or stop is closed.
func readAll[T any](stop <-chan struct{}, ch <-chan T, read func(T)) {
	for {
		select {
		case <-stop:
			return
		case update, open := <-ch:
			if !open {
				return
			}
			read(update)
		}
	}
}

func (w *watch) close() {
	close(w.stop)
	w.running.Wait()
	close(w.changed)
}

// tell signals a change; altered says that it is one of the plan.
func (w *watch) tell(altered bool) {
	if altered {
		w.altered.Store(true)
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// expect says what the kernel will have.
func (w *watch) expect(p Plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plan = p
}

// devices says which indexes our devices have.
func (w *watch) devices(index map[Underlay]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index = map[int]Underlay{}
	for u, i := range index {
		w.index[i] = u
	}
}

func (w *watch) device(index int) (Underlay, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u, ok := w.index[index]
	return u, ok
}

// link handles a link. The kernel removes routes of links that go down, and tells nothing of that.
func (w *watch) link(update netlink.LinkUpdate) {
	at := update.Attrs()
	if uint32(at.Group)&groupMask == podGroups {
		return
	}
	u, ours := w.device(at.Index)
	if !ours {
		w.tell(true)
		return
	}
	w.mu.Lock()
	want := w.plan.Devices[u]
	w.mu.Unlock()
	up := at.Flags&net.FlagUp != 0
	gone := update.Header.Type == unix.RTM_DELLINK
	if gone && want != (Device{}) || !gone && (up != want.Up || at.MTU != want.MTU) {
		w.tell(true)
	}
}

// address handles an address. The kernel removes routes that prefer an address which goes, and
// tells nothing of that.
func (w *watch) address(update netlink.AddrUpdate) {
	u, ours := w.device(update.LinkIndex)
	if !ours {
		w.tell(!update.NewAddr)
		return
	}
	addr, ok := netip.AddrFromSlice(update.LinkAddress.IP)
	w.mu.Lock()
	_, wanted := w.plan.Addresses[Address{u, addr.Unmap()}]
	w.mu.Unlock()
	if ok && wanted != update.NewAddr {
		w.tell(true)
	}
}

func (w *watch) route(update netlink.RouteUpdate) {
	switch {
	case update.Protocol == podRoutes || update.Table == unix.RT_TABLE_LOCAL:
	case !marked(update.Route, w.cluster):
		w.tell(false)
	case update.Table == senders:
		k := kernel{Config: Config{Cluster: w.cluster}}
		a, ok := k.senderOf(update.Route)
		w.mu.Lock()
		_, wanted := w.plan.Senders[a]
		w.mu.Unlock()
		if ok && (update.Type == unix.RTM_NEWROUTE) != wanted {
			w.tell(true)
		}
	default:
		w.mu.Lock()
		k := kernel{Config: Config{Cluster: w.cluster}, index: map[Underlay]int{}}
		for i, u := range w.index {
			k.index[u] = i
		}
		to, is, ok := k.routeOf(update.Route)
		want, wanted := w.plan.Routes[to]
		w.mu.Unlock()
		if ok && (update.Type == unix.RTM_NEWROUTE) != (wanted && is == want) {
			w.tell(true)
		}
	}
}

func (w *watch) neighbour(update netlink.NeighUpdate) {
	u, ours := w.device(update.LinkIndex)
	if !ours {
		return
	}
	added := update.Type == unix.RTM_NEWNEIGH
	w.mu.Lock()
	defer w.mu.Unlock()
	if update.Family == unix.AF_BRIDGE {
		if key, far, ok := farOf(u, update.Neigh); ok && added != (w.plan.Forward[key] == far) {
			w.tell(true)
		}
		return
	}
	// One that is deleted is first changed to one that has failed.
	addr, _ := netip.AddrFromSlice(update.IP)
	want, wanted := w.plan.Neighbours[Address{u, addr.Unmap()}]
	_, mac, permanent := neighbourOf(u, update.Neigh)
	if as := added && permanent; as != wanted || as && mac != want {
		w.tell(true)
	}
}
