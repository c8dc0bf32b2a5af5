package cni

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// way is how a directory is reached.
type way struct {
	// turns are the names that lead elsewhere if they change: links, the last name, and where the
	// way ends too early the one that is missing. No other name on their way is a link.
	turns []string
	// end is the directory without links; empty if there is none.
	end string
}

// maxLinks is how many links on one way are too many for the kernel, too (path_resolution(7)).
const maxLinks = 41

// wayTo looks dir, an absolute path, up as the kernel does.
func wayTo(dir string) (way, error) {
	var w way
	at, links := "/", 0
	names := strings.Split(dir, "/")
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		st, err := os.Lstat(next)
		target := ""
		if err == nil && st.Mode()&fs.ModeSymlink != 0 {
			target, err = os.Readlink(next)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EINVAL): // EINVAL: a link no more
			w.turns = append(w.turns, next)
			return w, nil
		case err != nil:
			return way{}, err
		case target == "":
			if at = next; len(names) == 0 {
				w.turns = append(w.turns, next)
			}
			continue
		}
		w.turns = append(w.turns, next)
		if links++; links == maxLinks { // they lead in a circle, until one is changed
			return w, nil
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		names = append(strings.Split(target, "/"), names...)
	}
	w.end = at
	return w, nil
}

func (w way) same(o way) bool { return w.end == o.end && slices.Equal(w.turns, o.turns) }

// concerns says whether a change of path may change where the way leads, or what is at its end.
// Next to it there is what is none of our business.
func (w way) concerns(path string) bool {
	if w.end != "" && isWithin(path, w.end) {
		return true
	}
	return slices.ContainsFunc(w.turns, func(turn string) bool { return isWithin(turn, path) || isWithin(path, turn) })
}

// isWithin says whether path is dir, or below it.
func isWithin(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
