// Command guest is what runs in the containers of the kubelet's end-to-end tests: one small static
// program that does what its arguments say.
package main

import (
	"fmt"
	"net/http"
	"os"
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

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
}
