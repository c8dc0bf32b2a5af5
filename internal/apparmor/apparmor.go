// Package apparmor has the AppArmor profile of containers that ask for the runtime's default, and loads
// it into the kernel (https://docs.kernel.org/admin-guide/LSM/apparmor.html).
package apparmor

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Default is the name of the profile. One that is loaded by this name already, an administrator's own,
// is left as it is.
const Default = "coracle-default"

// ErrNoParser is returned where apparmor_parser, which alone makes profiles the kernel takes, is missing.
var ErrNoParser = errors.New("no apparmor_parser (package apparmor)")

//go:generate go run ./generate profile

//go:embed profile
var profile []byte

// parseLimit bounds a run of apparmor_parser, which takes some 50 ms.
const parseLimit = time.Minute

// Enabled says whether the kernel confines by AppArmor.
func Enabled() bool {
	on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.TrimSpace(string(on)) == "Y"
}

// Profiles are those that are loaded.
type Profiles map[string]bool

// Loaded reads which profiles are loaded. It needs securityfs.
func Loaded() (Profiles, error) {
	b, err := os.ReadFile("/sys/kernel/security/apparmor/profiles")
	if err != nil {
		return nil, err
	}
	return parse(string(b)), nil
}

// parse reads "name (mode)" in each line; names may have blanks.
func parse(lines string) Profiles {
	all := Profiles{}
	for line := range strings.Lines(lines) {
		if i := strings.LastIndex(line, " ("); i > 0 {
			all[line[:i]] = true
		}
	}
	return all
}

// LoadDefault loads the profile, or replaces it.
func LoadDefault(ctx context.Context) error {
	parser, err := parserPath()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, parseLimit)
	defer cancel()
	var said bytes.Buffer
	// No cache: its directory may be read-only.
	cmd := exec.CommandContext(ctx, parser, "--replace", "--skip-cache")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(profile), &said, &said
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("load AppArmor profile %s: %w: %s", Default, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// HasParser says whether LoadDefault can find apparmor_parser.
func HasParser() bool {
	_, err := parserPath()
	return err == nil
}

// parserPath looks where Debian has it, too: the PATH of services need not name that.
func parserPath() (string, error) {
	for _, name := range []string{"apparmor_parser", "/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoParser
}
