package diff

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/treewalk"
)

// stack is layers with FileMarkers that are looked at as one tree.
type stack struct {
	roots []int // open, lowest layer first
	room  *room
	open  int // descriptors of directories below the roots
}

// maxOpen is how many of those stay open while the walk is further below: an image may nest
// directories more than a thousand deep, in hundreds of layers.
const maxOpen = 256

// openStack opens the roots of layers, given lowest first.
func openStack(layers []string, r *room) (*stack, error) {
	s := &stack{room: r}
	for _, dir := range layers {
		fd, err := OpenRoot(dir + "/" + FilesDir)
		if err != nil {
			s.close()
			return nil, err
		}
		s.roots = append(s.roots, fd)
	}
	return s, nil
}

func (s *stack) close() {
	for _, fd := range s.roots {
		_ = unix.Close(fd)
	}
}

// top is the root directory of the tree.
func (s *stack) top() (*merged, error) {
	m := &merged{stack: s}
	for i := range s.roots {
		m.layers = append(m.layers, len(s.roots)-1-i)
	}
	return m, m.wake()
}

// merged is one directory of a stack, as the layers that show there have it. It may rest,
// with no descriptor open, while the walk is below; layers do not change.
type merged struct {
	*stack
	path   string
	layers []int // places in roots, uppermost first
	fds    []int // of layers; none: it rests
}

// wake opens the directory.
func (m *merged) wake() error {
	if len(m.fds) > 0 {
		return nil
	}
	for _, layer := range m.layers {
		fd, err := treewalk.OpenDir(m.roots[layer], cleanRel(m.path))
		if err != nil {
			m.rest()
			return fmt.Errorf("open %q: %w", m.path, err)
		}
		m.fds = append(m.fds, fd)
		m.open++
	}
	return nil
}

func cleanRel(rel string) string { return path.Clean("./" + rel) }

func (m *merged) rest() {
	for _, fd := range m.fds {
		_ = unix.Close(fd)
		m.open--
	}
	m.fds = m.fds[:0]
}

// close ends the use of a directory; nil is one that nothing shows in.
func (m *merged) close() {
	if m != nil {
		m.rest()
	}
}

// node is a name that shows in a merged directory.
type node struct {
	name string
	stat unix.Stat_t
	in   *merged
	from int   // place in in.fds of the directory that shows the name
	dirs []int // and of those whose directories of the name show
	// open says that directories of the name in lower layers show too.
	open bool
}

func (n *node) isDir() bool { return n.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// dir is the open directory that shows the name.
func (n *node) dir() (int, error) {
	if err := n.in.wake(); err != nil {
		return -1, err
	}
	return n.in.fds[n.from], nil
}

// list returns what shows, sorted by name. The caller gives back what that took of the room.
func (m *merged) list() (nodes []*node, took int, err error) {
	if m == nil {
		return nil, 0, nil
	}
	shown := map[string]*node{}
	hidden := map[string]bool{}
	for i := range m.fds {
		opaque, n, err := m.listLayer(i, shown, hidden)
		took += n
		if err != nil {
			return nil, took, err
		}
		if opaque {
			break
		}
	}
	nodes = make([]*node, 0, len(shown))
	for _, n := range shown {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return nodes, took, nil
}

// listLayer adds what one layer shows, and then what it hides of those beneath.
func (m *merged) listLayer(i int, shown map[string]*node, hidden map[string]bool) (opaque bool, took int, err error) {
	fd := m.fds[i]
	names, listing, err := m.room.sortedNames(fd)
	defer m.room.give(listing)
	if err != nil {
		return false, 0, err
	}
	var whiteouts []string
	for _, name := range names {
		if name == opaqueFile {
			opaque = true
			continue
		}
		if gone, ok := strings.CutPrefix(name, whiteoutPrefix); ok {
			whiteouts = append(whiteouts, gone)
			continue
		}
		n := shown[name]
		if hidden[name] || n != nil && !n.open {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return false, took, fmt.Errorf("stat %q: %w", name, err)
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		switch {
		case n == nil:
			took += len(name) + nodeCost
			if err := m.room.take(len(name) + nodeCost); err != nil {
				return false, took, err
			}
			n = &node{name: name, stat: st, in: m, from: i, open: isDir}
			shown[name] = n
		case !isDir:
			n.open = false
			continue
		}
		if isDir {
			n.dirs = append(n.dirs, i)
		}
	}
	for _, name := range whiteouts {
		hidden[name] = true
		if n := shown[name]; n != nil {
			n.open = false
		}
	}
	return opaque, took, nil
}

// enter opens a directory that list returned. The one that it is in may rest from then on.
func (n *node) enter() (*merged, error) {
	if err := n.in.wake(); err != nil {
		return nil, err
	}
	m := &merged{stack: n.in.stack, path: path.Join(n.in.path, n.name)}
	for _, place := range n.dirs {
		fd, err := unix.Openat(n.in.fds[place], n.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			m.close()
			return nil, fmt.Errorf("open %q: %w", n.name, err)
		}
		m.layers = append(m.layers, n.in.layers[place])
		m.fds = append(m.fds, fd)
		m.open++
	}
	if m.open > maxOpen {
		n.in.rest()
	}
	return m, nil
}

// readlink, xattrs and openRegular are those of a directory, for what shows there.
func (n *node) readlink() (string, error) {
	dir, err := n.dir()
	if err != nil {
		return "", err
	}
	return readlink(dir, n.name)
}

func (n *node) xattrs() (map[string]string, error) {
	dir, err := n.dir()
	if err != nil {
		return nil, err
	}
	return keptXattrs(dir, n.name)
}

func (n *node) openRegular() (*os.File, error) {
	dir, err := n.dir()
	if err != nil {
		return nil, err
	}
	return openRegular(dir, n.name)
}
