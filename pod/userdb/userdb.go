// Package userdb finds out who a container runs as, from the /etc/passwd and
// /etc/group of its image. Those files are a stranger's: they are read through
// internal/safepath, bounded, and what does not parse in them is passed over.
package userdb

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/coracle-project/coracle/internal/safepath"
)

// Limits on what is believed of an image.
const (
	maxFile = 4 << 20 // bytes of passwd and of group
	maxLine = 1 << 20 // a group may have very many members
	maxID   = math.MaxInt32
)

// ErrUser says that the user or group asked for is not in the image, or no valid number.
var ErrUser = errors.New("no such user")

// Request says who to be. The zero value is root.
type Request struct {
	// User is a name or number, with an optional ":group", as in an image's
	// configuration. UID and GID, when not nil, win over its parts.
	User     string
	UID, GID *int64
	// Groups are added to those of the image, or with Strict are all there are.
	Groups []int64
	Strict bool
}

// Identity is who a process runs as.
type Identity struct {
	UID, GID uint32
	// Groups are the supplementary groups, sorted, GID included as peers do
	// when there are any of the image's.
	Groups []uint32
	Home   string // "/" if unknown
}

// Resolve looks r up in the root's user database. A missing file is an empty one.
func Resolve(root *safepath.Root, r Request) (Identity, error) {
	passwd, err := read(root, "/etc/passwd")
	if err != nil {
		return Identity{}, err
	}
	group, err := read(root, "/etc/group")
	if err != nil {
		return Identity{}, err
	}
	return resolve(passwd, group, r)
}

func read(root *safepath.Root, path string) ([]byte, error) {
	b, err := root.ReadFile(path, maxFile)
	// ENOTDIR: an image may have a file at /etc.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the image's user database: %w", err)
	}
	return b, nil
}

func resolve(passwd, group []byte, r Request) (Identity, error) {
	name, groupName, _ := strings.Cut(r.User, ":")
	if r.UID != nil {
		// The number replaces the user part; the group part goes with it.
		name, groupName = strconv.FormatInt(*r.UID, 10), ""
	}
	if name == "" {
		name = "0"
	}
	u, err := findUser(passwd, name)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{UID: u.uid, GID: u.gid, Home: u.home}
	switch {
	case r.GID != nil:
		if id.GID, err = number(*r.GID); err != nil {
			return Identity{}, err
		}
	case groupName != "":
		if id.GID, err = findGroup(group, groupName); err != nil {
			return Identity{}, err
		}
	}
	for _, g := range r.Groups {
		n, err := number(g)
		if err != nil {
			return Identity{}, err
		}
		id.Groups = append(id.Groups, n)
	}
	if !r.Strict && u.name != "" {
		id.Groups = append(id.Groups, groupsOf(group, u.name)...)
	}
	if !slices.Contains(id.Groups, id.GID) {
		id.Groups = append(id.Groups, id.GID)
	}
	slices.Sort(id.Groups)
	id.Groups = slices.Compact(id.Groups)
	return id, nil
}

func number(n int64) (uint32, error) {
	if n < 0 || n > maxID {
		return 0, fmt.Errorf("%w: id %d is not between 0 and %d", ErrUser, n, maxID)
	}
	return uint32(n), nil
}

type user struct {
	name     string
	uid, gid uint32
	home     string
}

// findUser finds a user by name, else by number. A number that is not in the file is
// still a user, of group 0 and without a name.
func findUser(passwd []byte, want string) (user, error) {
	n, numeric := parseID(want)
	var byNumber *user
	for f := range fields(passwd, 4) {
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 {
			continue
		}
		u := user{name: f[0], uid: uid, gid: gid, home: "/"}
		if len(f) > 5 && strings.HasPrefix(f[5], "/") {
			u.home = f[5]
		}
		if u.name == want {
			return u, nil
		}
		if numeric && uid == n && byNumber == nil {
			byNumber = &u
		}
	}
	switch {
	case byNumber != nil:
		return *byNumber, nil
	case numeric:
		return user{uid: n, home: "/"}, nil
	}
	return user{}, fmt.Errorf("%w %q in the image's /etc/passwd", ErrUser, want)
}

// findGroup finds a group by name, else by number, which need not be in the file.
func findGroup(group []byte, want string) (uint32, error) {
	for f := range fields(group, 3) {
		if gid, ok := parseID(f[2]); ok && f[0] == want {
			return gid, nil
		}
	}
	if n, ok := parseID(want); ok {
		return n, nil
	}
	return 0, fmt.Errorf("%w: group %q is not in the image's /etc/group", ErrUser, want)
}

// groupsOf are the groups that list name as a member.
func groupsOf(group []byte, name string) []uint32 {
	var out []uint32
	for f := range fields(group, 4) {
		gid, ok := parseID(f[2])
		if ok && slices.Contains(strings.Split(f[3], ","), name) {
			out = append(out, gid)
		}
	}
	return out
}

// fields yields the colon-separated fields of each line that has at least n of them.
func fields(file []byte, n int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		sc := bufio.NewScanner(bytes.NewReader(file))
		sc.Buffer(nil, maxLine)
		for sc.Scan() {
			line := strings.TrimSpace(sc.Text())
			if line == "" || line[0] == '#' {
				continue
			}
			if f := strings.Split(line, ":"); len(f) >= n && f[0] != "" && !yield(f) {
				return
			}
		}
		// A line beyond maxLine ends the file, as its end would.
	}
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return uint32(n), err == nil
}
