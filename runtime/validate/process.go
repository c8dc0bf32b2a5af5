package validate

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// Process checks the process of a configuration or of an exec.
func Process(p *specs.Process) error {
	if p == nil {
		return invalid("process", "is missing")
	}
	if len(p.Args) == 0 || p.Args[0] == "" {
		return invalid("process.args", "is empty, give the program to run")
	}
	if p.Cwd == "" {
		return invalid("process.cwd", "is empty, give an absolute path such as /")
	}
	if !filepath.IsAbs(p.Cwd) {
		return invalid("process.cwd", "%q is not absolute, begin it with /", p.Cwd)
	}
	if err := checkText("process.cwd", p.Cwd); err != nil {
		return err
	}
	for i, a := range p.Args {
		if hasZero(a) {
			return checkText(fmt.Sprintf("process.args[%d]", i), a)
		}
	}
	for i, e := range p.Env {
		if err := checkEnv(e); err != nil {
			return fmt.Errorf("%w: process.env[%d] %w", runtime.ErrInvalidSpec, i, err)
		}
	}
	if err := checkUser(p.User); err != nil {
		return err
	}
	if err := checkRlimits(p.Rlimits); err != nil {
		return err
	}
	if a := p.OOMScoreAdj; a != nil && (*a < -1000 || *a > 1000) {
		return invalid("process.oomScoreAdj", "%d is out of range, use -1000 to 1000", *a)
	}
	if s := p.ConsoleSize; s != nil && (s.Height > math.MaxUint16 || s.Width > math.MaxUint16) {
		return invalid("process.consoleSize", "%dx%d is out of range, the most is %d", s.Width, s.Height, math.MaxUint16)
	}
	if err := checkScheduling(p); err != nil {
		return err
	}
	return texts{{"process.apparmorProfile", p.ApparmorProfile}, {"process.selinuxLabel", p.SelinuxLabel}}.check()
}

func checkEnv(e string) error {
	if i := strings.IndexByte(e, 0); i >= 0 {
		return fmt.Errorf("%q has a zero byte at position %d", e, i+1)
	}
	if strings.IndexByte(e, '=') <= 0 {
		return fmt.Errorf("%q is not of the form NAME=value", e)
	}
	return nil
}

func checkUser(u specs.User) error {
	if err := checkID32("process.user.uid", u.UID); err != nil {
		return err
	}
	if err := checkID32("process.user.gid", u.GID); err != nil {
		return err
	}
	for i, g := range u.AdditionalGids {
		if err := checkID32(fmt.Sprintf("process.user.additionalGids[%d]", i), g); err != nil {
			return err
		}
	}
	if u.Umask != nil && *u.Umask > 0o777 {
		return invalid("process.user.umask", "%#o is out of range, the most is 0777", *u.Umask)
	}
	return nil
}

func checkRlimits(limits []specs.POSIXRlimit) error {
	seen := make(map[string]bool, len(limits))
	for i, l := range limits {
		field := fmt.Sprintf("process.rlimits[%d]", i)
		if _, ok := runtime.Rlimits[l.Type]; !ok {
			return invalid(field+".type", "%q is no resource limit, use one such as RLIMIT_NOFILE", l.Type)
		}
		if seen[l.Type] {
			return invalid(field+".type", "%q is a duplicate, remove one", l.Type)
		}
		seen[l.Type] = true
		if l.Soft > l.Hard {
			return invalid(field+".soft", "%d is above the hard limit %d", l.Soft, l.Hard)
		}
	}
	return nil
}
