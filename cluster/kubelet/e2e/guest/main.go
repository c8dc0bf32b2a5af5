// Command guest is what runs in the containers of the kubelet's end-to-end tests: one small static
// program that does what its arguments say.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	for _, step := range strings.Split(strings.Join(os.Args[1:], " "), " , ") {
		run(strings.Fields(step))
	}
}

// run does one step; several are separated by a comma.
func run(args []string) {
	if len(args) == 0 {
		return
	}
	switch command, args := args[0], args[1:]; command {
	case "sleep": // until a signal, or for some milliseconds
		if len(args) > 0 {
			ms, _ := strconv.Atoi(args[0])
			time.Sleep(time.Duration(ms) * time.Millisecond)
			return
		}
		ch := make(chan os.Signal, 1)
		signal.Notify(ch, syscall.SIGTERM)
		<-ch
	case "trap": // ignore SIGTERM for ever
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(24 * time.Hour)
	case "exit":
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	case "say":
		fmt.Println(strings.Join(args, " "))
	case "append": // a line to a file
		f, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		check(err)
		_, err = f.WriteString(strings.Join(args[1:], " ") + "\n")
		check(err)
		check(f.Close())
	case "cat":
		content, err := os.ReadFile(args[0])
		check(err)
		_, _ = os.Stdout.Write(content)
	case "remove":
		check(os.Remove(args[0]))
	case "exists": // fail unless a file is there
		_, err := os.Stat(args[0])
		check(err)
	case "copy":
		content, err := os.ReadFile(args[0])
		check(err)
		check(os.WriteFile(args[1], content, 0o644))
	case "env":
		fmt.Println(os.Getenv(args[0]))
	case "serve":
		check(http.ListenAndServe(":"+args[0], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "ok")
		})))
	case "setuid": // make a copy of this program that runs as its owner
		content, err := os.ReadFile("/guest")
		check(err)
		check(os.WriteFile(args[0], content, 0o755))
		check(os.Chmod(args[0], 0o755|os.ModeSetuid))
	case "whoami":
		fmt.Println(os.Geteuid())
	case "as": // a user, run a program
		uid, err := strconv.Atoi(args[0])
		check(err)
		cmd := exec.Command(args[1], args[2:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		check(cmd.Run())
	case "fork": // as many children as possible, at most so many, and say how many there were
		n, err := strconv.Atoi(args[0])
		check(err)
		fmt.Println(fork(n))
	case "fill": // a file with so many megabytes
		n, err := strconv.Atoi(args[1])
		check(err)
		f, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		check(err)
		for range n {
			_, err = f.Write(make([]byte, 1<<20))
			check(err)
		}
		check(f.Close())
	case "chatter": // a line of 1 KiB with its number every five milliseconds, for ever
		line := strings.Repeat("x", 1<<10)
		for i := 0; ; i++ {
			fmt.Println(i, line)
			time.Sleep(5 * time.Millisecond)
		}
	case "eat": // megabytes, touching each page
		n, _ := strconv.Atoi(args[0])
		b := make([]byte, n<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		time.Sleep(time.Hour)
	default:
		check(fmt.Errorf("unknown command %q", command))
	}
}

// fork does without the Go runtime's own threads in its children, each of which would count.
func fork(n int) int {
	var children []int
	for range n {
		pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			break
		}
		for pid == 0 {
			_, _, _ = syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
		children = append(children, int(pid))
	}
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}
	return len(children)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
}
