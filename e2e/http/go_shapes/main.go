// The calls of the code execution page in Go, with the official SDK, against the server of $CODEEXEC_URL. It prints what came of each as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

var ctx = context.Background()

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func bash(command string) anthropic.ContentBlockParamUnion {
	return anthropic.NewTextBlock("```bash\n" + command + "\n```\n")
}

func ask(content ...anthropic.ContentBlockParamUnion) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{
		Model:     "demo",
		MaxTokens: 4096,
		Messages:  []anthropic.MessageParam{anthropic.NewUserMessage(content...)},
		Tools:     []anthropic.ToolUnionParam{{OfCodeExecutionTool20250825: &anthropic.CodeExecutionTool20250825Param{}}},
	}
}

func results(message *anthropic.Message) (found []anthropic.BashCodeExecutionToolResultBlock) {
	for _, block := range message.Content {
		if result, ok := block.AsAny().(anthropic.BashCodeExecutionToolResultBlock); ok {
			found = append(found, result)
		}
	}
	return found
}

func summary(message *anthropic.Message) map[string]any {
	kinds, inputs := []string{}, []json.RawMessage{}
	for _, block := range message.Content {
		kinds = append(kinds, block.Type)
		if use, ok := block.AsAny().(anthropic.ServerToolUseBlock); ok {
			inputs = append(inputs, must(json.Marshal(use.Input)))
		}
	}
	outputs := []string{}
	for _, result := range results(message) {
		outputs = append(outputs, result.Content.Stdout)
	}
	return map[string]any{
		"kinds": kinds, "inputs": inputs, "stdout": outputs, "stop": message.StopReason,
		"container": message.Container.ID, "expires": message.Container.ExpiresAt, "raw": json.RawMessage(message.RawJSON()),
	}
}

func streamed(client anthropic.Client, params anthropic.MessageNewParams) *anthropic.Message {
	message := anthropic.Message{}
	stream := client.Messages.NewStreaming(ctx, params)
	for stream.Next() {
		if err := message.Accumulate(stream.Current()); err != nil {
			log.Fatal(err)
		}
	}
	if err := stream.Err(); err != nil {
		log.Fatal(err)
	}
	return &message
}

func status(err error) int {
	var failure *anthropic.Error
	if !errors.As(err, &failure) {
		log.Fatal("no error of the API: ", err)
	}
	return failure.StatusCode
}

func main() {
	place := []option.RequestOption{option.WithBaseURL(os.Getenv("CODEEXEC_URL")), option.WithMaxRetries(0)}
	client := anthropic.NewClient(append(place, option.WithAPIKey(os.Getenv("CODEEXEC_KEY")))...)
	out := map[string]any{}

	first := must(client.Messages.New(ctx, ask(bash("echo 12 > /tmp/number.txt; echo written"))))
	out["first"] = summary(first)

	again := ask(bash("n=$(cat /tmp/number.txt); echo $((n * n))"))
	again.Container = anthropic.MessageCreateParamsContainerUnion{OfString: anthropic.String(first.Container.ID)}
	out["second"] = summary(must(client.Messages.New(ctx, again)))
	out["streamed"] = summary(streamed(client, again))

	history := ask(bash("echo 1"))
	history.Messages = append(ask(bash("echo written")).Messages, first.ToParam(), history.Messages[0])
	out["history"] = summary(must(client.Messages.New(ctx, history)))

	folder := must(os.MkdirTemp("", "go-shapes-"))
	defer os.RemoveAll(folder)
	if err := os.WriteFile(filepath.Join(folder, "data.csv"), []byte("a,b\n1,2\n"), 0o600); err != nil {
		log.Fatal(err)
	}
	file := must(os.Open(filepath.Join(folder, "data.csv")))
	defer file.Close()
	uploaded := must(client.Files.Upload(ctx, anthropic.FileUploadParams{File: file}))
	out["uploaded"] = json.RawMessage(uploaded.RawJSON())

	analysed := must(client.Messages.New(ctx, ask(bash(`tac "$INPUT_DIR/data.csv" > "$OUTPUT_DIR/output.csv"`), anthropic.NewContainerUploadBlock(uploaded.ID))))
	downloads := map[string]string{}
	for _, result := range results(analysed) {
		for _, output := range result.Content.Content {
			metadata := must(client.Files.GetMetadata(ctx, output.FileID, anthropic.FileGetMetadataParams{}))
			content := must(client.Files.Download(ctx, output.FileID, anthropic.FileDownloadParams{}))
			downloads[metadata.Filename] = string(must(io.ReadAll(content.Body)))
			content.Body.Close()
		}
	}
	out["downloads"] = downloads

	listed := []string{}
	pages := client.Files.ListAutoPaging(ctx, anthropic.FileListParams{Limit: anthropic.Int(1)})
	for pages.Next() {
		listed = append(listed, pages.Current().Filename)
	}
	out["listed"] = must(listed, pages.Err())
	out["deleted"] = must(client.Files.Delete(ctx, uploaded.ID, anthropic.FileDeleteParams{})).Type

	_, gone := client.Files.GetMetadata(ctx, uploaded.ID, anthropic.FileGetMetadataParams{})
	stranger := anthropic.NewClient(append(place, option.WithAPIKey("wrong"))...)
	_, refused := stranger.Messages.New(ctx, ask(bash("echo 1")))
	out["statuses"] = []int{status(gone), status(refused)}

	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}
