package base

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// AllowedOOMScore is want, or the lowest value the kernel lets this process set.
// Lowering oom_score_adj below the own value needs CAP_SYS_RESOURCE
// (proc_pid_oom_score_adj(5)), which nested and rootless runtimes lack. A
// container that may be killed a little earlier is better than none.
func (s *Store) AllowedOOMScore(id string, want *int) *int {
	if want == nil || mayLowerOOMScore() {
		return want
	}
	own, err := ownOOMScore()
	if err != nil || *want >= own {
		return want
	}
	s.warnOOM.Do(func() {
		s.log.Warn("oom_score_adj cannot be lowered without CAP_SYS_RESOURCE, containers get this process's own",
			"container", id, "wanted", *want, "set", own)
	})
	return &own
}

var mayLowerOOMScore = sync.OnceValue(func() bool {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true // let the kernel judge
	}
	for line := range bytes.Lines(data) {
		if hex, ok := bytes.CutPrefix(line, []byte("CapEff:")); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(string(hex)), 16, 64)
			return err != nil || caps&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return true
})

func ownOOMScore() (int, error) {
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}
