//go:build faults

package fault

import (
	"os"
	"strconv"
	"strings"
)

// armedFault is the fault armed at a point.
type armedFault struct {
	action string
	// lasts reports whether a hang continues; nil: until the context ends.
	lasts func() bool
	// done records that a fault that stays has happened; nil: no one asks.
	done func() error
}

// armed returns the fault for the n-th time that the point is reached.
func armed(name string, n int) armedFault {
	if action := find(os.Getenv(listVar), name, n); action != "" {
		return armedFault{action: action}
	}
	path := os.Getenv(fileVar)
	action := find(read(path), name, n)
	if action == "" {
		return armedFault{}
	}
	if action, once := strings.CutPrefix(action, "once*"); once {
		taken := path + TakenSuffix
		if os.Rename(path, taken) != nil {
			return armedFault{} // another process was faster
		}
		return armedFault{
			action: action,
			lasts: func() bool {
				_, err := os.Lstat(taken)
				return err == nil
			},
			done: func() error {
				err := os.Rename(taken, path+DoneSuffix)
				if os.IsNotExist(err) {
					return nil // disarmed meanwhile: no one waits for it
				}
				return err
			},
		}
	}
	return armedFault{action: action, lasts: func() bool { return find(read(path), name, n) == action }}
}

// find returns the action in a list of NAME=ACTION for the n-th time.
func find(list, name string, n int) string {
	for item := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		point, action, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok || point != name {
			continue
		}
		times, rest, ok := strings.Cut(action, "*")
		if !ok || times == "once" {
			return action
		}
		if want, err := strconv.Atoi(times); err == nil && want == n {
			return rest
		}
	}
	return ""
}

// read returns the content of a file, "" if the file does not exist.
func read(path string) string {
	if path == "" {
		return ""
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}
