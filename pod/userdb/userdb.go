// Package userdb finds out who a container runs as, from the /etc/passwd and
// /etc/group of its image. Those files are untrusted: they are read through
// internal/safepath and bounded, and lines that do not parse are ignored.
package userdb

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
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
	// maxGroups is what setgroups(2) takes (NGROUPS_MAX). A group file has room for many more.
	maxGroups = 65536
)

// ErrUser says that the user or group asked for is not in the image, or no valid number.
var ErrUser = errors.New("no such user")

// Request says who to be. The zero value is root.
type Request struct {
	// User is a name or number, with an optional ":group", as in an image's
	// configuration. What Numeric takes for a number is never looked up as a name.
	// UID and GID, when not nil, win over its parts.
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
	var u user
	n, numeric, err := id(name)
	switch {
	case err != nil:
	case numeric:
		u = userByNumber(passwd, n)
	default:
		u, err = userByName(passwd, name)
	}
	if err != nil {
		return Identity{}, err
	}
	who := Identity{UID: u.uid, GID: u.gid, Home: u.home}
	switch {
	case r.GID != nil:
		if who.GID, err = number(*r.GID); err != nil {
			return Identity{}, err
		}
	case groupName != "":
		if who.GID, err = findGroup(group, groupName); err != nil {
			return Identity{}, err
		}
	}
	for _, g := range r.Groups {
		n, err := number(g)
		if err != nil {
			return Identity{}, err
		}
		who.Groups = append(who.Groups, n)
	}
	if !r.Strict && u.name != "" {
		who.Groups = append(who.Groups, groupsOf(group, u.name)...)
	}
	if !slices.Contains(who.Groups, who.GID) {
		who.Groups = append(who.Groups, who.GID)
	}
	slices.Sort(who.Groups)
	who.Groups = slices.Compact(who.Groups)
	if len(who.Groups) > maxGroups {
		return Identity{}, fmt.Errorf("%w: user %q is in %d groups, and a process can be in %d", ErrUser, name, len(who.Groups), maxGroups)
	}
	return who, nil
}

// Numeric says whether a user or group in an image's configuration is a number, whatever its size.
// The kubelet checks runAsNonRoot by the number that it is told of an image, so such a name must
// never be looked up in a file that the image brings along (CVE-2026-46680): a line "1000:x:0:0"
// there would make user 1000 root.
func Numeric(name string) bool {
	_, err := strconv.ParseInt(name, 10, 64)
	return err == nil || errors.Is(err, strconv.ErrRange)
}

// id is the number that a name is, if it is numeric.
func id(name string) (n uint32, numeric bool, err error) {
	if !Numeric(name) {
		return 0, false, nil
	}
	v, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		return 0, true, fmt.Errorf("%w: id %.40s is not between 0 and %d", ErrUser, name, maxID)
	}
	n, err = number(v)
	return n, true, err
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

// userByName finds the first user of that name.
func userByName(passwd []byte, name string) (user, error) {
	for u := range users(passwd) {
		if u.name == name {
			return u, nil
		}
	}
	return user{}, fmt.Errorf("%w %q in the image's /etc/passwd", ErrUser, name)
}

// userByNumber finds the first user with that number. One that is not in the file is still a user,
// of group 0 and without a name.
func userByNumber(passwd []byte, uid uint32) user {
	for u := range users(passwd) {
		if u.uid == uid {
			return u
		}
	}
	return user{uid: uid, home: "/"}
}

// users yields the users of a passwd file.
func users(passwd []byte) iter.Seq[user] {
	return func(yield func(user) bool) {
		for f := range fields(passwd, 4, 7) {
			uid, ok1 := parseID(f[2])
			gid, ok2 := parseID(f[3])
			if !ok1 || !ok2 {
				continue
			}
			u := user{name: f[0], uid: uid, gid: gid, home: "/"}
			if len(f) > 5 && strings.HasPrefix(f[5], "/") {
				u.home = f[5]
			}
			if !yield(u) {
				return
			}
		}
	}
}

// findGroup finds a group by its number, which need not be in the file, or by name.
func findGroup(group []byte, want string) (uint32, error) {
	if n, numeric, err := id(want); numeric {
		return n, err
	}
	for f := range fields(group, 3, 4) {
		if gid, ok := parseID(f[2]); ok && f[0] == want {
			return gid, nil
		}
	}
	return 0, fmt.Errorf("%w: group %q is not in the image's /etc/group", ErrUser, want)
}

// groupsOf are the groups that list name as a member.
func groupsOf(group []byte, name string) []uint32 {
	var out []uint32
	for f := range fields(group, 4, 5) {
		if gid, ok := parseID(f[2]); ok && isMember(f[3], name) {
			out = append(out, gid)
		}
	}
	return out
}

// isMember looks for a name in a group's list. The list is not split: one of a megabyte of commas
// would take sixteen, and one for each group.
func isMember(list, name string) bool {
	for member := range strings.SplitSeq(list, ",") {
		if member == name {
			return true
		}
	}
	return false
}

// fields yields the colon-separated fields of each line that has at least so many of them. After
// most-1 fields, the rest of a line is one.
func fields(file []byte, least, most int) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		sc := bufio.NewScanner(bytes.NewReader(file))
		sc.Buffer(nil, maxLine)
		for sc.Scan() {
			text := bytes.TrimSpace(sc.Bytes())
			if bytes.Count(text, []byte(":")) < least-1 || text[0] == '#' {
				continue
			}
			line := string(text)
			if f := strings.SplitN(line, ":", most); len(f) >= least && f[0] != "" && !yield(f) {
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
