package ocispec

import "strings"

// defaultPath is PATH for images that set none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is PATH and TERM for images that set none, the image's variables, HOSTNAME,
// then the caller's.
// A variable keeps the place of its first mention and has the value of its last.
func environment(in Input) []string {
	var (
		out []string
		at  = map[string]int{}
	)
	set := func(name, value string) {
		if i, ok := at[name]; ok {
			out[i] = name + "=" + value
			return
		}
		at[name] = len(out)
		out = append(out, name+"="+value)
	}
	set("PATH", defaultPath)
	if in.TTY {
		set("TERM", "xterm")
	}
	for _, kv := range in.ImageEnv {
		name, value, _ := strings.Cut(kv, "=")
		if name != "" {
			set(name, value)
		}
	}
	if in.Hostname != "" {
		set("HOSTNAME", in.Hostname)
	}
	for _, kv := range in.Env {
		set(kv[0], kv[1])
	}
	return out
}

// Args is the command line: the caller's command replaces the image's entrypoint and
// command, the caller's args only the image's command (CRI, as Docker's rules).
func Args(command, args, imageEntrypoint, imageCmd []string) []string {
	if len(command) == 0 {
		if len(args) == 0 {
			args = imageCmd
		}
		command = imageEntrypoint
	}
	return append(append([]string{}, command...), args...)
}
