package cri

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/utils/exec"
)

// execSlack is how much longer than the command's own timeout a call may take: the runtime cleans
// up.
const execSlack = 2 * time.Minute

// Exec runs a command in a container and returns what it printed, stdout before stderr. A command
// that fails is an exec.CodeExitError, one that takes longer than timeout (0: no limit) wraps
// ErrCommandTimedOut of k8s.io/cri-client.
func (c *Client) Exec(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout+execSlack)
		defer cancel()
	}
	resp, err := c.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: id, Cmd: command, Timeout: int64(timeout / time.Second),
	})
	if err != nil {
		if grpcstatus.Code(err) == codes.DeadlineExceeded {
			return nil, fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(command, " "), timeout)
		}
		return nil, err
	}
	output := append(resp.Stdout, resp.Stderr...)
	if resp.ExitCode != 0 {
		return output, exec.CodeExitError{
			Err:  fmt.Errorf("command '%s' exited with %d: %s", strings.Join(command, " "), resp.ExitCode, resp.Stderr),
			Code: int(resp.ExitCode),
		}
	}
	return output, nil
}
